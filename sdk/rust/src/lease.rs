//! A lease: its deadline, its loss, its renewal and its release.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::acquire::{give_up, release};
use crate::client::Inner;
use crate::error::{FORGOTTEN, format_duration, seconds};
use crate::names::{Key, fingerprint};
use crate::renewal::{End, Hold, keep, renew};
use crate::runtime::Task;
use crate::timing::call_limit;
use crate::{Error, Kind, Loss, LossReason, boot};

/// What a lease shares with its renewal.
pub(crate) struct State {
    pub(crate) client: Arc<Inner>,
    pub(crate) key: Key,
    pub(crate) id: String,
    pub(crate) token: u64,
    pub(crate) ttl: f64,
    /// Cancelled when the lease is lost or given up.
    pub(crate) ended: CancellationToken,
    /// The renewal has a reason to look again.
    pub(crate) news: Notify,
    is_doubtful: bool,
    hold: Mutex<Hold>,
}

impl State {
    pub(crate) fn new(
        client: Arc<Inner>,
        key: Key,
        id: String,
        token: u64,
        hold: Hold,
        is_doubtful: bool,
    ) -> Arc<State> {
        let (ended, news, ttl) = (CancellationToken::new(), Notify::new(), hold.ttl);
        let hold = Mutex::new(hold);
        Arc::new(State { client, key, id, token, ttl, ended, news, is_doubtful, hold })
    }

    /// Read or change the hold. Reports an end to all who wait for it.
    pub(crate) fn look<T>(&self, change: impl FnOnce(&mut Hold) -> T) -> T {
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        let found = change(&mut hold);
        let has_ended = hold.end.is_some();
        drop(hold);
        if has_ended {
            self.ended.cancel();
        }
        found
    }

    /// A notification says that it was revoked.
    pub(crate) fn suspect(&self) {
        self.look(|hold| hold.suspect(boot::now()));
        self.news.notify_one();
    }

    /// Why it has ended, as of now.
    fn end(&self) -> Option<End> {
        self.look(|hold| {
            if hold.remaining(boot::now()) == 0.0 {
                hold.lose(LossReason::Expired, "");
            }
            hold.end.clone()
        })
    }

    fn loss(&self) -> Option<Loss> {
        match self.end()? {
            End::Released => None,
            End::Lost(reason, detail) => {
                Some(Loss { reason, detail, what: self.key.to_string(), token: self.token })
            }
        }
    }

    fn ensure(&self) -> Result<(), Error> {
        match (self.end(), self.loss()) {
            (None, _) => Ok(()),
            (_, Some(loss)) => Err(Error::Lost(Box::new(loss))),
            _ => Err(Error::Released(format!("the lease on {} was released", self.key))),
        }
    }
}

/// A lease on a lock, on units of a semaphore, or on a side of a readers-writer lock.
///
/// The crate renews it in the background until you release or drop it, or until it is lost. Dropping
/// releases in the background. Before the process ends, await [`release`](Lease::release) or
/// [`Client::flush`](crate::Client::flush): otherwise the lease can stay for its ttl.
///
/// ```no_run
/// # async fn example(client: dibs::Client) -> Result<(), dibs::Error> {
/// let lease = client.semaphore("gpu", 4).units(2).acquire().await?;
/// println!("slots {:?}, token {}", lease.slots(), lease.token());
/// lease.release().await
/// # }
/// ```
#[must_use = "dropping a lease releases it"]
pub struct Lease {
    state: Arc<State>,
    slots: Vec<u32>,
    fingerprint: String,
}

impl Lease {
    pub(crate) fn new(state: Arc<State>, slots: Vec<u32>) -> Lease {
        let fingerprint = fingerprint(&state.id);
        state.client.notifications.expect(&fingerprint, &state);
        state.client.handle.spawn(keep(state.clone()));
        Lease { state, slots, fingerprint }
    }

    /// The kind of primitive.
    pub fn kind(&self) -> Kind {
        self.state.key.kind
    }

    /// The name: any bytes.
    pub fn name(&self) -> &[u8] {
        &self.state.key.name
    }

    /// The fencing token. It rises with each grant of the name.
    pub fn token(&self) -> u64 {
        self.state.token
    }

    /// Numbers of the units; empty if they have none.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// The time for which the store keeps it without a renewal.
    pub fn ttl(&self) -> Duration {
        seconds(self.state.ttl)
    }

    /// The public name of the lease, as [`Status`](crate::Status) shows it. It is no secret.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The time until the deadline. After it you must not rely on the lease. Zero once it has ended.
    pub fn remaining(&self) -> Duration {
        seconds(self.state.look(|hold| hold.remaining(boot::now())))
    }

    /// Fail unless at least `needs` is left before the deadline.
    ///
    /// Call it right before each step that relies on the lease. It asks no server.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(lease: &dibs::Lease) -> Result<(), dibs::Error> {
    /// lease.ensure(Duration::from_secs(2))?; // the next step takes less than two seconds
    /// # Ok(())
    /// # }
    /// ```
    pub fn ensure(&self, needs: Duration) -> Result<(), Error> {
        self.state.ensure()?;
        let (left, needs) = (self.remaining().as_secs_f64(), needs.as_secs_f64());
        if left >= needs {
            return Ok(());
        }
        Err(Error::TooShort(format!(
            "the lease on {} has {} left, and {} are needed: renew it first, or take a longer ttl",
            self.state.key,
            format_duration(left),
            format_duration(needs)
        )))
    }

    /// Whether it was lost. Computed from the deadline at every call.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Why it was lost; `None` if it was not.
    pub fn loss(&self) -> Option<Loss> {
        self.state.loss()
    }

    /// Why the latest renewal failed. It is tried again until the deadline.
    pub fn trouble(&self) -> Option<String> {
        self.state.look(|hold| hold.trouble.clone())
    }

    /// Wait until it is lost, at its deadline at the latest. Returns `None` once it is released instead.
    ///
    /// The future does not borrow the lease.
    pub fn lost(&self) -> impl Future<Output = Option<Loss>> + Send + use<> {
        let state = self.state.clone();
        async move {
            state.ended.cancelled().await;
            state.loss()
        }
    }

    /// A token that is cancelled when the lease ends: when it is lost, released or dropped.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.state.ended.child_token()
    }

    /// Run `body`, and drop it if the lease is lost first. Then fails with [`Error::Lost`].
    ///
    /// The lease stays held afterwards. Tasks and threads that `body` starts are not interrupted:
    /// give them the [token](Lease::cancellation_token).
    pub async fn run<F: Future>(&self, body: F) -> Result<F::Output, Error> {
        self.state.ensure()?;
        tokio::select! {
            biased;
            () = self.state.ended.cancelled() => Err(self.state.ensure().err().unwrap_or_else(|| {
                Error::Released(format!("the lease on {} was released", self.state.key))
            })),
            output = body => Ok(output),
        }
    }

    /// Renew it now, once. It is renewed in the background anyway.
    ///
    /// Fails with [`Error::Unavailable`] if the outcome is unknown: what is left of the lease still stands.
    pub async fn renew(&self) -> Result<(), Error> {
        self.state.ensure()?;
        let state = self.state.clone();
        let handle = &self.state.client.handle;
        Task::spawn(handle, async move { renew(&state).await }).await?;
        self.state.ensure()
    }

    /// Release it, and wait for the answer. Nothing happens if it has been released already.
    ///
    /// Fails with [`Error::Lost`] if it was lost before. Fails with [`Error::Unavailable`] if the service
    /// does not answer: then the release continues in the background.
    pub async fn release(&self) -> Result<(), Error> {
        self.state.end(); // it may be lost by now
        let is_first = self.state.look(|hold| {
            let is_first = hold.end.is_none();
            hold.end.get_or_insert(End::Released);
            is_first
        });
        if !is_first {
            return self.loss().map_or(Ok(()), |loss| Err(Error::Lost(Box::new(loss))));
        }
        let background = InBackground(Some(self.state.clone()));
        Task::spawn(&self.state.client.handle, release_now(background)).await
    }
}

/// Release a lease that has just been given up. If nobody answers, continue in the background.
async fn release_now(mut background: InBackground) -> Result<(), Error> {
    let Some(state) = background.0.clone() else { return Ok(()) };
    let limit = call_limit(state.ttl, state.client.transport.call_timeout);
    let is_held = release(&state.client, &state.key, &state.id, state.is_doubtful, limit).await?;
    background.0 = None;
    if is_held || state.look(|hold| boot::now() >= hold.deadline) {
        return Ok(());
    }
    // another holder may have had it meanwhile
    state.look(|hold| hold.end = Some(End::Lost(LossReason::Expired, FORGOTTEN.into())));
    state.ensure()
}

/// Releases in the background when it is dropped, unless it was emptied.
struct InBackground(Option<Arc<State>>);

impl Drop for InBackground {
    fn drop(&mut self) {
        if let Some(state) = self.0.take() {
            give_up(&state.client, state.key.clone(), state.id.clone(), state.is_doubtful);
        }
    }
}

/// The deadline of a lease on the boot clock, also after its end.
pub fn deadline(lease: &Lease) -> f64 {
    lease.state.look(|hold| hold.deadline)
}

impl Drop for Lease {
    fn drop(&mut self) {
        let end = self.state.end();
        self.state.look(|hold| hold.end.get_or_insert(End::Released).clone());
        self.state.client.notifications.forget(&self.fingerprint);
        if end != Some(End::Released) {
            // also after a loss: a late renewal may have prolonged it at the store
            drop(InBackground(Some(self.state.clone())));
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let left = format_duration(self.remaining().as_secs_f64());
        write!(f, "Lease on {}, token {}, {left} left", self.state.key, self.token())
    }
}
