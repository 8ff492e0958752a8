//! The same for threads: each call blocks until it has its result.
//!
//! Do not use it in async tasks: there it panics. A thread is never interrupted, so check
//! [`Lease::ensure`](crate::Lease::ensure) before each step that relies on the lease.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let client = dibs::blocking::Client::connect("https://locks.example")?;
//! let lock = client.lock("jobs/order:42").wait(Duration::from_secs(5));
//! let lease = lock.acquire()?;
//! lease.ensure(Duration::from_secs(2))?;
//! lease.release()?;
//! # Ok::<_, dibs::Error>(())
//! ```

use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use crate::{Error, Event, Kind, Loss, Revoked, Status, WatchEvent, runtime};

fn wait<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    runtime::handle()?.block_on(future)
}

/// A client of the lock service, for threads. Clones share connections.
#[derive(Debug, Clone)]
pub struct Client(crate::Client);

impl Client {
    /// See [`Client::connect`](crate::Client::connect).
    pub fn connect(url: impl Into<String>) -> Result<Client, Error> {
        crate::Client::connect(url).map(Client)
    }

    /// See [`Client::lock`](crate::Client::lock).
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock(self.0.lock(name))
    }

    /// See [`Client::semaphore`](crate::Client::semaphore).
    pub fn semaphore(&self, name: impl AsRef<[u8]>, capacity: u32) -> Semaphore {
        Semaphore(self.0.semaphore(name, capacity))
    }

    /// See [`Client::rwlock`](crate::Client::rwlock).
    pub fn rwlock(&self, name: impl AsRef<[u8]>) -> RwLock {
        RwLock(self.0.rwlock(name))
    }

    /// See [`Client::status`](crate::Client::status).
    pub fn status(&self, kind: Kind, name: impl AsRef<[u8]>) -> Result<Status, Error> {
        wait(self.0.status(kind, name))
    }

    /// See [`Client::list`](crate::Client::list).
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Result<Vec<Status>, Error> {
        wait(self.0.list(prefix))
    }

    /// See [`Client::revoke`](crate::Client::revoke).
    pub fn revoke(
        &self,
        kind: Kind,
        name: impl AsRef<[u8]>,
        reason: &str,
    ) -> Result<Revoked, Error> {
        wait(self.0.revoke(kind, name, reason))
    }

    /// See [`Client::events`](crate::Client::events). Iterate over it.
    pub fn events(&self, prefix: impl AsRef<[u8]>) -> EventStream<Event> {
        EventStream(self.0.events(prefix))
    }

    /// See [`Client::watch`](crate::Client::watch). Iterate over it.
    pub fn watch(
        &self,
        kind: Kind,
        name: impl AsRef<[u8]>,
    ) -> Result<EventStream<WatchEvent>, Error> {
        self.0.watch(kind, name).map(EventStream)
    }

    /// See [`Client::flush`](crate::Client::flush).
    pub fn flush(&self, limit: Duration) -> bool {
        wait(async { Ok(self.0.flush(limit).await) }).unwrap_or(false)
    }
}

impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Client {
        Client(client)
    }
}

macro_rules! options {
    () => {
        /// See [`Lock::ttl`](crate::Lock::ttl).
        pub fn ttl(self, ttl: Duration) -> Self {
            Self(self.0.ttl(ttl))
        }

        /// See [`Lock::wait`](crate::Lock::wait).
        pub fn wait(self, wait: Duration) -> Self {
            Self(self.0.wait(wait))
        }

        /// See [`Lock::priority`](crate::Lock::priority).
        pub fn priority(self, priority: i32) -> Self {
            Self(self.0.priority(priority))
        }

        /// See [`Lock::note`](crate::Lock::note).
        pub fn note(self, note: impl Into<String>) -> Self {
            Self(self.0.note(note))
        }

        /// See [`Lock::label`](crate::Lock::label).
        pub fn label(self, label: impl Into<String>) -> Self {
            Self(self.0.label(label))
        }
    };
}

macro_rules! acquires {
    () => {
        /// See [`Lock::acquire`](crate::Lock::acquire).
        pub fn acquire(&self) -> Result<Lease, Error> {
            wait(self.0.acquire()).map(Lease)
        }

        /// See [`Lock::try_acquire`](crate::Lock::try_acquire).
        pub fn try_acquire(&self) -> Result<Option<Lease>, Error> {
            Ok(wait(self.0.try_acquire())?.map(Lease))
        }
    };
}

/// A lock, or one side of a readers-writer lock.
#[derive(Debug, Clone)]
#[must_use = "it acquires nothing until you call acquire()"]
pub struct Lock(crate::Lock);

impl Lock {
    options!();
    acquires!();
}

/// A semaphore with numbered slots.
#[derive(Debug, Clone)]
#[must_use = "it acquires nothing until you call acquire()"]
pub struct Semaphore(crate::Semaphore);

impl Semaphore {
    /// See [`Semaphore::units`](crate::Semaphore::units).
    pub fn units(self, units: u32) -> Self {
        Self(self.0.units(units))
    }

    options!();
    acquires!();
}

/// A readers-writer lock.
#[derive(Debug, Clone)]
#[must_use = "it acquires nothing until you call read() or write()"]
pub struct RwLock(crate::RwLock);

impl RwLock {
    /// The side of the readers, with the same options.
    pub fn read(&self) -> Lock {
        Lock(self.0.read())
    }

    /// The side of the writers, with the same options.
    pub fn write(&self) -> Lock {
        Lock(self.0.write())
    }

    options!();
}

/// A lease, for threads. It has all methods of [`Lease`](crate::Lease) that do not wait.
#[derive(Debug)]
#[must_use = "dropping a lease releases it"]
pub struct Lease(crate::Lease);

impl Lease {
    /// See [`Lease::renew`](crate::Lease::renew).
    pub fn renew(&self) -> Result<(), Error> {
        wait(self.0.renew())
    }

    /// See [`Lease::release`](crate::Lease::release).
    pub fn release(&self) -> Result<(), Error> {
        wait(self.0.release())
    }

    /// Wait until it is lost. Returns `None` once another thread releases it instead.
    pub fn lost(&self) -> Result<Option<Loss>, Error> {
        wait(async { Ok(self.0.lost().await) })
    }
}

impl Deref for Lease {
    type Target = crate::Lease;

    fn deref(&self) -> &crate::Lease {
        &self.0
    }
}

/// Events, as an iterator that waits for each.
#[derive(Debug)]
pub struct EventStream<T>(crate::EventStream<T>);

impl<T: Send + 'static> Iterator for EventStream<T> {
    type Item = Result<T, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        wait(async { Ok(self.0.next().await) }).ok().flatten()
    }
}
