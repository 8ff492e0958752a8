//! Leases on shared resources, with fencing tokens: the client of the Dibs lock service.
//!
//! A [`Client`] talks to `dibs serve`. Programs in Python, shell commands and other HTTP clients use
//! the same locks.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! # async fn pay(order: u32, token: u64) {}
//! #[tokio::main]
//! async fn main() -> Result<(), dibs::Error> {
//!     let client = dibs::Client::connect("https://locks.example")?; // the key is in DIBS_API_KEY
//!     let lock = client.lock("jobs/order:42").ttl(Duration::from_secs(30));
//!     let lease = lock.wait(Duration::from_secs(5)).acquire().await?;
//!     lease.run(pay(42, lease.token())).await?; // stops `pay` if the lease is lost
//!     lease.release().await
//! }
//! ```
//!
//! **Renewal.** A thread of this crate renews each lease after a third of its ttl. Neither a blocked
//! executor nor many tasks cost a lease. So the futures of this crate work in any executor.
//!
//! **Loss.** A lease is lost at its deadline: the time when its last confirmed message was sent,
//! plus the ttl, minus a margin. [`Lease::run`] and [`Lease::cancellation_token`] report the loss, and
//! [`Lease::ensure`] checks it before a step. A renewal without an answer is unknown, not a loss.
//!
//! **Fencing.** [`Lease::token`] rises with each grant of a name. A resource that rejects lower
//! tokens is safe from a holder that was paused and writes late.
//!
//! **After `fork`** a child must connect anew. Use `exec` instead if you can.

mod acquire;
#[cfg(feature = "blocking")]
pub mod blocking;
mod boot;
mod client;
mod error;
mod events;
mod lease;
mod lock;
mod names;
mod notifications;
mod renewal;
mod restrictions;
mod runtime;
mod status;
mod timing;
mod transport;
mod url;

pub use client::{Client, ClientBuilder};
pub use error::{Error, Held, Loss, LossReason};
pub use events::{Event, EventStream, Watch, WatchEvent};
pub use lease::Lease;
pub use lock::{Lock, RwLock, Semaphore};
pub use names::Kind;
pub use restrictions::{Restriction, Rule};
pub use status::{Holder, Revoked, Status, Waiter};
pub use tokio_util::sync::CancellationToken;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The renewal arithmetic, for tests of this crate.
#[doc(hidden)]
pub mod arithmetic {
    pub use crate::boot::now;
    pub use crate::lease::deadline;
    pub use crate::renewal::{Care, End, Hold};
    pub use crate::timing::{call_limit, margin, renew_after, trusted};
}
