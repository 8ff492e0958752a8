//! Who holds and who waits, as others can see it.

use serde::{Deserialize, Deserializer};

use crate::Kind;
use crate::names::Key;

/// A holder of a lock, without its lease id.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Holder {
    /// Fingerprint of the lease. [`Client::revoke_one`](crate::Client::revoke_one) takes it.
    pub lease: String,
    /// The holder, for people.
    pub owner: String,
    /// The fencing token.
    pub token: u64,
    /// Units that it holds. A writer has all of them.
    pub units: u64,
    /// Numbers of the units, if they are numbered.
    #[serde(default)]
    pub slots: Vec<u32>,
    /// Seconds since the grant.
    pub held_for: f64,
    /// Seconds until the lease ends, unless it is renewed.
    pub expires_in: f64,
    /// The holder's note; it can be empty.
    #[serde(default)]
    pub note: String,
    /// `held`, `unclaimed`, `revoked` or `retained`.
    #[serde(default = "held")]
    pub state: String,
}

fn held() -> String {
    "held".into()
}

/// A waiter in the queue of a lock.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Waiter {
    /// Fingerprint of its lease id.
    pub lease: String,
    /// The waiter, for people.
    pub owner: String,
    /// Units that it wants.
    pub units: u64,
    /// Higher goes first.
    pub priority: i64,
    /// Seconds since it joined the queue.
    pub waited: f64,
    /// The waiter's note; it can be empty.
    #[serde(default)]
    pub note: String,
}

/// The state of one lock, semaphore or readers-writer lock.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "StatusOnWire")]
#[non_exhaustive]
pub struct Status {
    /// The kind of primitive.
    pub kind: Kind,
    /// The name: any bytes.
    pub name: Vec<u8>,
    /// Units that all holders can have together.
    pub capacity: u64,
    /// At most 100 holders.
    pub holders: Vec<Holder>,
    /// At most 100 waiters, in the order of the queue.
    pub waiters: Vec<Waiter>,
    /// Number of all waiters.
    pub waiting: u64,
    /// Number of all holders.
    pub holding: u64,
    /// Units that the holders have together.
    pub used: u64,
    /// The latest fencing token.
    pub last_token: u64,
}

#[derive(Deserialize)]
struct StatusOnWire {
    #[serde(deserialize_with = "key")]
    key: Key,
    capacity: u64,
    #[serde(default)]
    holders: Vec<Holder>,
    #[serde(default)]
    waiters: Vec<Waiter>,
    #[serde(default)]
    waiting: u64,
    #[serde(default)]
    holding: u64,
    #[serde(default)]
    used: u64,
    #[serde(default)]
    last_token: u64,
}

impl From<StatusOnWire> for Status {
    fn from(wire: StatusOnWire) -> Status {
        Status {
            kind: wire.key.kind,
            name: wire.key.name,
            capacity: wire.capacity,
            holders: wire.holders,
            waiters: wire.waiters,
            waiting: wire.waiting,
            holding: wire.holding,
            used: wire.used,
            last_token: wire.last_token,
        }
    }
}

fn key<'de, D: Deserializer<'de>>(from: D) -> Result<Key, D::Error> {
    let text = String::deserialize(from)?;
    Key::from_wire(&text).map_err(serde::de::Error::custom)
}

/// Result of a revocation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Revoked {
    /// Number of leases that were revoked.
    pub count: u64,
    /// Seconds until the last of them has ended. Until then its units stay taken.
    pub ends_in: f64,
}
