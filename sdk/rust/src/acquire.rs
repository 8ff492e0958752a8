//! One acquire: it waits in the queue of the service, under a lease id of its own.
//!
//! Each request of an acquire has the same id, so a request that is sent again finds its lease or its
//! position. An acquire that ends without a lease gives its id up, also if it is cancelled.

use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde::Deserialize;

use crate::client::Inner;
use crate::error::{Held, seconds};
use crate::lease::{Lease, State};
use crate::names::{Key, new_id};
use crate::renewal::{Hold, Told, ask_for_renewal};
use crate::timing::{call_limit, margin, renew_after, tombstone, trusted};
use crate::transport::{CONNECT_TIMEOUT, Request};
use crate::{Error, boot};

/// Seconds for which even a single try is repeated while the service is away.
const BRIEFLY: f64 = 1.0;

/// Seconds that leaving the queue may take before it goes on in the background.
const LEAVING: f64 = 3.0;

/// The first and the longest pause between two requests while the service is away, in seconds.
const PAUSES: (f64, f64) = (0.02, 1.0);

/// The shortest and the longest wait of one request, in seconds. Until it ends, a dead connection costs
/// a turn in the queue.
const POLLS: (f64, f64) = (1.0, 10.0);

/// Tries of a release in the background; then the lease expires by itself.
const RELEASES: i32 = 8;

/// What to acquire, and how.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    pub(crate) key: Key,
    /// Units and capacity, or the side of a readers-writer lock, as the query contains them.
    pub(crate) units: String,
    pub(crate) ttl: f64,
    /// Seconds to wait; `None` for no limit.
    pub(crate) wait: Option<f64>,
    pub(crate) priority: i32,
    pub(crate) note: String,
    pub(crate) label: String,
    pub(crate) auto_renew: bool,
}

/// A grant in an answer.
#[derive(Deserialize)]
struct Granted {
    sequencer: u64,
    remaining: f64,
    slots: Vec<u32>,
}

enum Outcome {
    Granted(Granted),
    Held(Held),
    /// This id has ended.
    Gone,
    /// The service answers, and asks for another request later.
    Busy(Error),
}

/// Acquire, and start the renewal.
pub(crate) async fn acquire(client: Arc<Inner>, demand: Demand) -> Result<Lease, Error> {
    demand.key.check()?;
    let mut attempt = Attempt::new(client, demand)?;
    let granted = attempt.run().await;
    if matches!(granted, Err(Error::Held(_))) {
        attempt.leave().await;
    }
    granted
}

/// The requests of one acquire. Gives the id up if it is dropped early.
struct Attempt {
    client: Arc<Inner>,
    demand: Demand,
    id: String,
    began: f64,
    /// The store may know the id.
    is_known: bool,
    /// A copy of a request may be under way.
    is_doubtful: bool,
}

impl Attempt {
    fn new(client: Arc<Inner>, demand: Demand) -> Result<Attempt, Error> {
        let (id, began) = (new_id()?, boot::now());
        Ok(Attempt { client, demand, id, began, is_known: false, is_doubtful: false })
    }

    async fn run(&mut self) -> Result<Lease, Error> {
        let ttl = self.demand.ttl;
        let until = self.demand.wait.map_or(f64::INFINITY, |wait| self.began + wait);
        let is_try = self.demand.wait == Some(0.0);
        let (mut pause, mut away_since) = (PAUSES.0, None);
        loop {
            let left = (until - boot::now()).max(0.0);
            let poll = left.min((ttl / 3.0).clamp(POLLS.0, POLLS.1));
            let sent = boot::now();
            let outcome = self.ask(poll).await;
            let now = boot::now();
            let trouble = match outcome {
                Ok(Outcome::Granted(grant)) => match self.confirmed(sent, grant).await {
                    Ok(Some(lease)) => return Ok(lease),
                    Ok(None) => {
                        self.begin_anew()?;
                        continue;
                    }
                    Err(error) => error,
                },
                Ok(Outcome::Held(mut held)) => {
                    (pause, away_since) = (PAUSES.0, None);
                    // a try can come while the store is still removing expired leases
                    let removing = is_try && held.retry_after.is_some_and(|after| after.is_zero());
                    if now >= until && !(removing && now < self.began + BRIEFLY) {
                        held.waited = (!is_try).then(|| seconds(now - self.began));
                        self.is_known = self.is_doubtful || !is_try;
                        return Err(Error::Held(Box::new(held)));
                    }
                    if now < until {
                        self.is_doubtful = true; // its polls can be at several servers
                    }
                    if is_try || now < sent + poll / 2.0 {
                        boot::sleep_until(now + PAUSES.0).await;
                    }
                    continue;
                }
                Ok(Outcome::Gone) => {
                    self.begin_anew()?;
                    Error::unavailable("the lease ended before its grant arrived: acquire again")
                }
                Ok(Outcome::Busy(error)) => {
                    away_since = None;
                    self.is_doubtful = true;
                    if now >= until.max(self.began + BRIEFLY) {
                        return Err(error);
                    }
                    error
                }
                Err(error) if error.is_unavailable() => {
                    self.is_doubtful = true;
                    let since = *away_since.get_or_insert(sent);
                    let limit = if until.is_finite() { until } else { since + CONNECT_TIMEOUT };
                    if now >= limit.max(self.began + BRIEFLY) {
                        return Err(error);
                    }
                    error
                }
                Err(error) => return Err(error),
            };
            if now >= until.max(self.began + BRIEFLY) {
                return Err(trouble);
            }
            let asked = match &trouble {
                Error::Unavailable { retry_after: Some(after), .. } => after.as_secs_f64(),
                _ => 0.0,
            };
            let at = now + asked.clamp(pause, PAUSES.1);
            boot::sleep_until(at.min(until.max(now + PAUSES.0))).await;
            pause = (2.0 * pause).min(PAUSES.1);
        }
    }

    /// Send one request, which waits for `poll` seconds in the queue.
    async fn ask(&mut self, poll: f64) -> Result<Outcome, Error> {
        let Demand { key, units, ttl, priority, note, label, .. } = &self.demand;
        let word = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let owner = match label.as_str() {
            "" => self.client.owner.clone(),
            label => format!("{}/{label}", self.client.owner),
        };
        let mut path = format!("{}?ttl={ttl}&client-id={}{units}", key.path(), word(&owner));
        if poll > 0.0 {
            path += &format!("&wait={poll:.6}");
        }
        if *priority != 0 {
            path += &format!("&priority={priority}");
        }
        if !note.is_empty() {
            path += &format!("&note={}", word(note));
        }
        let transport = &self.client.transport;
        let patience =
            call_limit(*ttl, transport.call_timeout).max(if poll > 0.0 { 1.0 } else { 0.0 });
        let mut request = Request::new(Method::POST, &path, poll + patience);
        request.lease_id = Some(&self.id);
        self.is_known = true; // from now on, whatever comes
        let answer = transport.send(request).await?;
        if answer.status.as_u16() == 200 {
            return Ok(Outcome::Granted(transport.parse_answer(&answer)?));
        }
        let problem = answer.problem();
        match problem.kind.as_str() {
            "/problems/held" | "/problems/waiting" => {
                let mut held = Held::new(&self.demand.key, problem.holders, problem.position);
                held.retry_after = problem.retry_after.map(seconds).or(held.retry_after);
                Ok(Outcome::Held(held))
            }
            "/problems/lost" => Ok(Outcome::Gone),
            "/problems/too-large" => Err(Error::TooLarge(format!(
                "{}: you ask for more units than its capacity: ask for fewer, or declare a larger \
                 capacity",
                self.demand.key
            ))),
            "/problems/limit" | "/problems/moving" | "/problems/draining" => {
                Ok(Outcome::Busy(transport.explain(&answer)))
            }
            _ => Err(transport.explain(&answer)),
        }
    }

    /// The lease of a grant. One that came late is renewed first; `None` if it has ended meanwhile.
    async fn confirmed(&mut self, sent: f64, grant: Granted) -> Result<Option<Lease>, Error> {
        let ttl = self.demand.ttl;
        let mut since = sent;
        let mut deadline = sent + grant.remaining.min(ttl) - margin(ttl);
        if boot::now() >= sent + renew_after(ttl) {
            let asked = boot::now();
            match ask_for_renewal(&self.client, &self.demand.key, &self.id, ttl, "").await {
                Ok(Told::Kept { token, ttl: kept })
                    if token.is_none_or(|it| it == grant.sequencer) =>
                {
                    (since, deadline) = (asked, deadline.max(asked + trusted(kept)));
                }
                Ok(_) => return Ok(None),
                Err(error) if boot::now() >= deadline => {
                    self.is_doubtful = true;
                    return Err(error);
                }
                Err(_) => self.is_doubtful = true,
            }
        }
        if boot::now() >= deadline {
            self.is_doubtful = true;
            return Err(Error::unavailable(
                "the grant came too late: acquire again, or take a longer ttl",
            ));
        }
        let demand = &self.demand;
        let hold = Hold::new(ttl, since, deadline, self.client.has_inbox(), demand.auto_renew);
        let (client, id) = (self.client.clone(), std::mem::take(&mut self.id));
        let state =
            State::new(client, demand.key.clone(), id, grant.sequencer, hold, self.is_doubtful);
        self.is_known = false;
        Ok(Some(Lease::new(state, grant.slots)))
    }

    /// The id has ended. Give up what it may still have, and take another.
    fn begin_anew(&mut self) -> Result<(), Error> {
        self.is_doubtful = true;
        self.give_up();
        (self.id, self.is_doubtful) = (new_id()?, false);
        Ok(())
    }

    /// Leave the queue before the caller hears of the end of its wait.
    async fn leave(&mut self) {
        if !self.is_known {
            return;
        }
        let left =
            release(&self.client, &self.demand.key, &self.id, self.is_doubtful, LEAVING).await;
        self.is_known = left.is_err();
    }

    fn give_up(&mut self) {
        if self.is_known {
            self.is_known = false;
            let id = std::mem::take(&mut self.id);
            give_up(&self.client, self.demand.key.clone(), id, self.is_doubtful);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.is_doubtful = true; // a request may be under way
        self.give_up();
    }
}

/// Reply to a release.
#[derive(Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
enum Reply {
    Released,
    Unknown,
    Failed { detail: String },
}

/// Give up the lease or the queue position of an id; return whether there was one.
pub(crate) async fn release(
    client: &Inner,
    key: &Key,
    id: &str,
    is_doubtful: bool,
    limit: f64,
) -> Result<bool, Error> {
    let transport = &client.transport;
    let tombstone = if is_doubtful { tombstone(transport.call_timeout) } else { 0.0 };
    let command =
        serde_json::json!({"op": "release", "key": key.wire(), "id": id, "tombstone": tombstone});
    match transport.command(command, limit.min(transport.call_timeout)).await? {
        Reply::Released => Ok(true),
        Reply::Unknown => Ok(false),
        Reply::Failed { detail } => Err(Error::unavailable(format!("{key}: {detail}"))),
    }
}

/// Give up in the background whatever an id may have.
pub(crate) fn give_up(client: &Arc<Inner>, key: Key, id: String, is_doubtful: bool) {
    let inner = client.clone();
    client.spawn(async move {
        for tries in 0..RELEASES {
            let limit = inner.transport.call_timeout.min(LEAVING);
            if release(&inner, &key, &id, is_doubtful, limit).await.is_ok() {
                return;
            }
            boot::sleep_until(boot::now() + 0.1 * f64::from(1 << tries)).await;
        }
    });
}
