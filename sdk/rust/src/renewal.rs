//! Renewal of one lease: when, what an answer means, and when the lease is lost.
//!
//! [`Hold`] is the arithmetic. It is that of the Python runtime (`LeaseBase`), and takes all times as
//! arguments. [`keep`] applies it.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use crate::client::{Inner, inbox};
use crate::error::{FORGOTTEN, LossReason};
use crate::lease::State;
use crate::names::Key;
use crate::timing::{call_limit, renew_after, trusted};
use crate::{Error, boot};

/// Fraction of the time until a renewal by which it can be early.
const EARLY: f64 = 1.0 / 16.0;

/// Seconds after which a holder without an inbox gets one, with its first renewal.
const INBOX_AFTER: f64 = 1.0;

/// Seconds by which a loss is declared before the deadline, because timers are late.
const TIMER_SLACK: f64 = 0.005;

/// What to do about a lease now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Care {
    /// Nothing: it has ended.
    Ended,
    /// Look again at this time.
    WaitUntil(f64),
    /// Renew it now.
    Renew,
}

/// Why a lease has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// It was lost.
    Lost(LossReason, String),
    /// Its holder gave it up.
    Released,
}

/// The times of one lease, in seconds on the boot clock.
#[derive(Debug, Clone)]
pub struct Hold {
    /// Seconds for which the store keeps it without a renewal.
    pub ttl: f64,
    /// Its holder trusts it until then.
    pub deadline: f64,
    /// The next renewal is due then.
    pub renew_at: f64,
    /// Why it ended; `None` while it is held.
    pub end: Option<End>,
    /// Why the latest renewal failed.
    pub trouble: Option<String>,
    auto_renew: bool,
    renewing: bool,
    suspected_at: Option<f64>,
    is_urgent: bool,
}

impl Hold {
    /// A grant whose request was sent at `sent`, and which is trusted until `deadline`.
    pub fn new(ttl: f64, sent: f64, deadline: f64, has_inbox: bool, auto_renew: bool) -> Hold {
        let mut renew_at = sent + renew_after(ttl);
        if !has_inbox {
            renew_at = renew_at.min(sent + INBOX_AFTER);
        }
        Hold {
            ttl,
            deadline,
            renew_at,
            end: None,
            trouble: None,
            auto_renew,
            renewing: false,
            suspected_at: None,
            is_urgent: false,
        }
    }

    /// Seconds until the deadline; 0 once it has ended.
    pub fn remaining(&self, now: f64) -> f64 {
        if self.end.is_some() { 0.0 } else { (self.deadline - now).max(0.0) }
    }

    /// Lose it if its time is over, else return what it needs.
    pub fn check(&mut self, now: f64) -> Care {
        if self.end.is_some() {
            return Care::Ended;
        }
        if now >= self.deadline {
            self.lose(LossReason::Expired, "");
            return Care::Ended;
        }
        let wanted = self.auto_renew || self.suspected_at.is_some();
        if self.renewing || !wanted {
            return Care::WaitUntil(self.deadline);
        }
        if now < self.renew_at - EARLY * renew_after(self.ttl) && !self.is_urgent {
            return Care::WaitUntil(self.renew_at.min(self.deadline));
        }
        (self.renewing, self.is_urgent) = (true, false);
        Care::Renew
    }

    /// The store keeps it for `ttl` from `sent` at least. Past its deadline it stays lost.
    pub fn renewed(&mut self, sent: f64, ttl: f64, now: f64) {
        self.renewing = false;
        if self.end.is_some() {
            return;
        }
        if now >= self.deadline {
            return self.lose(LossReason::Expired, "");
        }
        self.trouble = None;
        self.deadline = self.deadline.max(sent + trusted(ttl));
        if self.suspected_at.is_some_and(|at| sent >= at) {
            self.suspected_at = None;
        }
        let lead = if self.suspected_at.is_some() { 0.0 } else { renew_after(self.ttl) };
        self.renew_at = sent + lead;
    }

    /// The outcome of a renewal is unknown: it is tried again until the deadline.
    pub fn failed(&mut self, why: &str, now: f64) {
        self.renewing = false;
        if self.end.is_none() {
            self.trouble = Some(why.to_owned());
            self.renew_at = now + (self.ttl / 20.0).min(1.0);
        }
    }

    /// The store says that it has ended. Past its deadline it has expired, whatever the store says.
    pub fn lost(&mut self, reason: LossReason, detail: &str, now: f64) {
        match now >= self.deadline {
            true => self.lose(LossReason::Expired, ""),
            false => self.lose(reason, detail),
        }
    }

    /// It is lost, unless it has ended already.
    pub(crate) fn lose(&mut self, reason: LossReason, detail: &str) {
        self.renewing = false;
        if self.end.is_none() {
            let trouble = self.trouble.take().filter(|_| detail.is_empty());
            self.end = Some(End::Lost(reason, trouble.unwrap_or_else(|| detail.to_owned())));
        }
    }

    /// A notification says that it was revoked: renew it now, to find out.
    pub fn suspect(&mut self, now: f64) {
        if self.end.is_none() {
            self.suspected_at = Some(now);
            self.is_urgent = !self.renewing; // else it is renewed again after that answer
        }
    }
}

/// Reply to a renewal.
#[derive(Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
enum Reply {
    Renewed {
        ttl: f64,
    },
    Granted {
        token: u64,
        ttl: f64,
    },
    Lost {
        #[serde(default)]
        reason: String,
        #[serde(default)]
        detail: String,
    },
    Queued {},
    Failed {
        detail: String,
    },
}

/// What the store told about a lease.
pub(crate) enum Told {
    /// It is kept for `ttl` from the time when the renewal was sent. The token is that of its grant, if
    /// the store named it.
    Kept { token: Option<u64>, ttl: f64 },
    /// It has ended.
    Lost(LossReason, String),
}

/// Ask the store once for more time. An error means that the outcome is unknown.
pub(crate) async fn ask_for_renewal(
    client: &Inner,
    key: &Key,
    id: &str,
    ttl: f64,
    inbox: &str,
) -> Result<Told, Error> {
    let command = json!({"op": "renew", "key": key.wire(), "id": id, "ttl": ttl, "inbox": inbox});
    let transport = &client.transport;
    let limit = call_limit(ttl, transport.call_timeout);
    let forgotten = || Told::Lost(LossReason::Expired, FORGOTTEN.into());
    match transport.command(command, limit).await? {
        Reply::Renewed { ttl: kept } => Ok(Told::Kept { token: None, ttl: kept.min(ttl) }),
        Reply::Granted { token, ttl: kept } => {
            Ok(Told::Kept { token: Some(token), ttl: kept.min(ttl) })
        }
        Reply::Lost { reason, detail } if reason == "revoked" => {
            Ok(Told::Lost(LossReason::Revoked, detail))
        }
        Reply::Lost { detail, .. } if !detail.is_empty() => {
            Ok(Told::Lost(LossReason::Expired, detail))
        }
        Reply::Lost { .. } | Reply::Queued {} => Ok(forgotten()),
        Reply::Failed { detail } => Err(Error::unavailable(format!("{key}: {detail}"))),
    }
}

/// Renew a lease until it ends.
pub(crate) async fn keep(state: Arc<State>) {
    loop {
        // a timer that is a little late must not report a loss after the deadline
        let care = state.look(|hold| match hold.check(boot::now() + TIMER_SLACK) {
            Care::Renew => (Care::Renew, hold.deadline),
            care => (care, hold.deadline),
        });
        let news = state.news.notified();
        match care {
            (Care::Ended, _) => return,
            (Care::WaitUntil(at), _) => tokio::select! {
                () = boot::sleep_until(at - TIMER_SLACK) => {}
                () = news => {}
                () = state.ended.cancelled() => return,
            },
            (Care::Renew, deadline) => tokio::select! {
                _ = renew(&state) => {}
                () = boot::sleep_until(deadline - TIMER_SLACK) => {}
                () = state.ended.cancelled() => return,
            },
        }
    }
}

/// Renew a lease once. An error means that the outcome is unknown.
pub(crate) async fn renew(state: &State) -> Result<(), Error> {
    let inbox = inbox(&state.client).await;
    let sent = boot::now();
    let answer = ask_for_renewal(&state.client, &state.key, &state.id, state.ttl, &inbox).await;
    let now = boot::now();
    let told = answer.map(|told| match told {
        Told::Kept { token, .. } if token.is_some_and(|token| token != state.token) => {
            Told::Lost(LossReason::Expired, FORGOTTEN.into()) // the id holds by another grant
        }
        told => told,
    });
    match told {
        Ok(Told::Kept { ttl, .. }) => state.look(|hold| hold.renewed(sent, ttl, now)),
        Ok(Told::Lost(reason, detail)) => state.look(|hold| hold.lost(reason, &detail, now)),
        Err(error) => {
            state.look(|hold| hold.failed(&error.to_string(), now));
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_does_not_revive_a_lease() {
        let mut hold = Hold::new(10.0, 0.0, trusted(10.0), true, true);
        assert_eq!(hold.check(4.0), Care::Renew);
        hold.renewed(4.0, 10.0, 9.0);
        assert_eq!(hold.check(9.0), Care::Ended);
        assert_eq!(hold.remaining(9.0), 0.0);
    }

    #[test]
    fn an_unknown_outcome_is_no_loss() {
        let mut hold = Hold::new(10.0, 0.0, trusted(10.0), true, true);
        assert_eq!(hold.check(4.0), Care::Renew);
        hold.failed("no answer", 5.0);
        assert_eq!(hold.check(5.0), Care::WaitUntil(5.5));
        assert_eq!(hold.deadline, trusted(10.0));
        assert_eq!(hold.check(5.5), Care::Renew);
        hold.renewed(5.5, 10.0, 5.6);
        assert_eq!((hold.deadline, hold.trouble), (5.5 + trusted(10.0), None));
    }

    #[test]
    fn a_suspicion_is_settled_by_a_later_renewal_only() {
        let mut hold = Hold::new(30.0, 0.0, trusted(30.0), true, false);
        hold.suspect(2.0);
        assert_eq!(hold.check(2.0), Care::Renew);
        hold.suspect(3.0);
        hold.renewed(2.0, 30.0, 3.5);
        assert_eq!(hold.check(3.5), Care::Renew);
        hold.renewed(3.5, 30.0, 4.0);
        assert_eq!(hold.check(4.0), Care::WaitUntil(hold.deadline));
    }
}
