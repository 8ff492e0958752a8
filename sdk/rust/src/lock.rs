//! Locks, semaphores and readers-writer locks: what to acquire, and how.

use std::time::Duration;

use crate::acquire::{Demand, acquire};
use crate::client::Client;
use crate::names::Key;
use crate::{Error, Kind, Lease};

/// Seconds for which the store keeps a lease without a renewal, unless you give another ttl.
const TTL: f64 = 30.0;

fn demand(kind: Kind, name: impl AsRef<[u8]>) -> Demand {
    Demand {
        key: Key::new(kind, name),
        units: String::new(),
        ttl: TTL,
        wait: None,
        priority: 0,
        note: String::new(),
        label: String::new(),
        auto_renew: true,
    }
}

macro_rules! options {
    () => {
        /// The time for which the store keeps a lease without a renewal; the default is 30 s. Services allow
        /// 1 s to 24 h unless they are set otherwise.
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.demand.ttl = ttl.as_secs_f64();
            self
        }

        /// The longest time in the queue. Without it, an acquire waits without limit.
        pub fn wait(mut self, wait: Duration) -> Self {
            self.demand.wait = Some(wait.as_secs_f64());
            self
        }

        /// Higher goes first in the queue; the default is 0.
        pub fn priority(mut self, priority: i32) -> Self {
            self.demand.priority = priority;
            self
        }

        /// A note for people. Waiters see it.
        pub fn note(mut self, note: impl Into<String>) -> Self {
            self.demand.note = note.into();
            self
        }

        /// Appended to the owner, for people: `host/pid/label`.
        pub fn label(mut self, label: impl Into<String>) -> Self {
            self.demand.label = label.into();
            self
        }

        /// Whether leases are renewed in the background; the default is true.
        pub fn auto_renew(mut self, auto_renew: bool) -> Self {
            self.demand.auto_renew = auto_renew;
            self
        }
    };
}

macro_rules! acquires {
    () => {
        /// Acquire, and wait in the queue if others hold it.
        ///
        /// If you drop the future, it leaves the queue in the background, and gives up what it may have got.
        ///
        /// # Errors
        ///
        /// - [`Error::Held`] after the longest wait.
        /// - [`Error::Unavailable`] if the service is away until then. Without a longest wait: for 5 s.
        pub async fn acquire(&self) -> Result<Lease, Error> {
            self.send(None).await
        }

        /// Try once. Returns `None` if others hold it, or wait for it.
        ///
        /// # Errors
        ///
        /// [`Error::Unavailable`] if the service is away.
        pub async fn try_acquire(&self) -> Result<Option<Lease>, Error> {
            match self.send(Some(0.0)).await {
                Ok(lease) => Ok(Some(lease)),
                Err(Error::Held(_)) => Ok(None),
                Err(error) => Err(error),
            }
        }

        async fn send(&self, wait: Option<f64>) -> Result<Lease, Error> {
            let mut demand = self.demand();
            demand.wait = wait.or(demand.wait);
            self.client.on_runtime(|inner| acquire(inner, demand)).await
        }
    };
}

/// A lock, or one side of a readers-writer lock. Each acquire returns a lease of its own.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(client: dibs::Client) -> Result<(), dibs::Error> {
/// let lock = client.lock("jobs/nightly").ttl(Duration::from_secs(60)).note("report");
/// match lock.wait(Duration::from_secs(5)).acquire().await {
///     Ok(lease) => lease.release().await?,
///     Err(error) if error.is_held() => println!("{error}"), // names the holder
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it acquires nothing until you call acquire()"]
pub struct Lock {
    client: Client,
    demand: Demand,
}

impl Lock {
    pub(crate) fn new(client: Client, name: impl AsRef<[u8]>) -> Lock {
        Lock { client, demand: demand(Kind::Lock, name) }
    }

    fn demand(&self) -> Demand {
        self.demand.clone()
    }

    options!();
    acquires!();
}

/// A semaphore with numbered slots. Each acquire returns a lease on some of its units.
///
/// ```no_run
/// # async fn example(client: dibs::Client) -> Result<(), dibs::Error> {
/// if let Some(lease) = client.semaphore("jobs/gpu", 4).units(2).try_acquire().await? {
///     println!("GPUs {:?} are ours", lease.slots());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it acquires nothing until you call acquire()"]
pub struct Semaphore {
    client: Client,
    demand: Demand,
    capacity: u32,
    units: u32,
}

impl Semaphore {
    pub(crate) fn new(client: Client, name: impl AsRef<[u8]>, capacity: u32) -> Semaphore {
        Semaphore { client, demand: demand(Kind::Semaphore, name), capacity, units: 1 }
    }

    /// Number of units to acquire; the default is 1.
    pub fn units(mut self, units: u32) -> Self {
        self.units = units;
        self
    }

    fn demand(&self) -> Demand {
        let units = format!("&capacity={}&units={}", self.capacity, self.units);
        Demand { units, ..self.demand.clone() }
    }

    options!();
    acquires!();
}

/// A readers-writer lock. A writer is alone; readers share.
///
/// ```no_run
/// # async fn example(client: dibs::Client) -> Result<(), dibs::Error> {
/// let table = client.rwlock("tables/orders");
/// let reading = table.read().acquire().await?;
/// reading.release().await?;
/// let writing = table.write().acquire().await?;
/// writing.release().await
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it acquires nothing until you call read() or write()"]
pub struct RwLock {
    client: Client,
    demand: Demand,
}

impl RwLock {
    pub(crate) fn new(client: Client, name: impl AsRef<[u8]>) -> RwLock {
        RwLock { client, demand: demand(Kind::RwLock, name) }
    }

    /// The side of the readers, with the same options.
    pub fn read(&self) -> Lock {
        self.side("&mode=read")
    }

    /// The side of the writers, with the same options.
    pub fn write(&self) -> Lock {
        self.side("&mode=write")
    }

    fn side(&self, mode: &str) -> Lock {
        let demand = Demand { units: mode.into(), ..self.demand.clone() };
        Lock { client: self.client.clone(), demand }
    }

    options!();
}
