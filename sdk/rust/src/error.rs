//! Errors, and messages that name the holder, the position in the queue and the next step.

use std::fmt;
use std::time::Duration;

use crate::names::{Key, printable};
use crate::status::Holder;

/// Why a call failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// Others held it for as long as you were willing to wait.
    Held(Box<Held>),
    /// The lease was lost. Stop the work that it protects.
    Lost(Box<Loss>),
    /// The lease has been released already.
    Released(String),
    /// Too little time is left before the deadline. The lease still stands.
    TooShort(String),
    /// The request asks for more units than the capacity. Waiting does not help.
    TooLarge(String),
    /// The service rejects the API key, or the key lacks a scope.
    Forbidden(String),
    /// The service is away or busy. What was asked for may have happened, or not.
    Unavailable {
        /// What happened, and what to check.
        message: String,
        /// The service asks for this pause before the next attempt.
        retry_after: Option<Duration>,
    },
    /// The URL, the name or a parameter is wrong. Another attempt fails the same way.
    Invalid(String),
}

/// Who holds what you wanted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Held {
    /// Name and kind, for people.
    pub what: String,
    /// Those that hold it now.
    pub holders: Vec<Holder>,
    /// Waiters ahead of you at the end; `None` without a position in the queue.
    pub position: Option<u32>,
    /// How long you waited; `None` for a single try.
    pub waited: Option<Duration>,
    /// The first lease ends after this time, unless it is renewed.
    pub retry_after: Option<Duration>,
}

/// Why a lease ended before its holder released it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The reason.
    pub reason: LossReason,
    /// More about the reason, for people; it can be empty.
    pub detail: String,
    pub(crate) what: String,
    pub(crate) token: u64,
}

/// The reason of a [`Loss`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// No renewal was confirmed before the deadline, or the store has no such lease any more.
    Expired,
    /// Somebody revoked it.
    Revoked,
}

/// Detail of a loss that the store reports before the deadline.
pub(crate) const FORGOTTEN: &str =
    "the store has no such lease any more: it ended there early, or its data was lost";

impl Error {
    pub(crate) fn unavailable(message: impl Into<String>) -> Error {
        Error::Unavailable { message: message.into(), retry_after: None }
    }

    /// Others held it until your wait ended.
    ///
    /// ```
    /// let error = dibs::Error::Invalid("no such thing".into());
    /// assert!(!error.is_held());
    /// ```
    pub fn is_held(&self) -> bool {
        matches!(self, Error::Held(_))
    }

    /// The lease was lost.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost(_))
    }

    /// The service is away or busy, so another attempt can succeed.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Unavailable { .. })
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Held(held) => held.fmt(f),
            Error::Lost(loss) => loss.fmt(f),
            Error::Unavailable { message, .. } => f.write_str(message),
            Error::Released(text)
            | Error::TooShort(text)
            | Error::TooLarge(text)
            | Error::Forbidden(text)
            | Error::Invalid(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holders.as_slice() {
            [] => write!(f, "{} is not free", self.what)?,
            [one] => write!(f, "{} is {}", self.what, described(one))?,
            many => {
                let each: Vec<_> = many.iter().map(described).collect();
                write!(f, "{} is taken by {} holders: {}", self.what, many.len(), each.join("; "))?;
            }
        }
        match self.position {
            None | Some(0) => {}
            Some(1) => f.write_str("; 1 is ahead of you")?,
            Some(ahead) => write!(f, "; {ahead} are ahead of you")?,
        }
        if let Some(waited) = self.waited {
            write!(f, "; gave up after {}", format_duration(waited.as_secs_f64()))?;
            return f.write_str(": try again, or give a longer wait()");
        }
        f.write_str(": try again later, or wait in the queue with acquire()")
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lease on {} (token {}) was lost: ", self.what, self.token)?;
        let why = match self.reason {
            _ if self.detail == FORGOTTEN => {
                return write!(f, "{FORGOTTEN}; another holder can have it already");
            }
            LossReason::Expired => "no renewal got through before its deadline",
            LossReason::Revoked => "it was revoked",
        };
        f.write_str(why)?;
        if !self.detail.is_empty() {
            write!(f, " ({})", printable(&self.detail))?;
        }
        f.write_str("; stop the work that it protects, and acquire again")
    }
}

impl Held {
    pub(crate) fn new(key: &Key, holders: Vec<Holder>, position: Option<u32>) -> Held {
        let soonest = holders.iter().map(|each| each.expires_in).min_by(f64::total_cmp);
        Held {
            what: key.to_string(),
            position,
            waited: None,
            retry_after: soonest.map(|after| seconds(after.max(0.0))),
            holders,
        }
    }
}

/// A duration from seconds of the service, which may be anything.
pub(crate) fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or_default()
}

fn described(holder: &Holder) -> String {
    if holder.state == "retained" {
        let free = format_duration(holder.expires_in.max(0.0));
        return format!("retained after its last hold, free in {free}");
    }
    let note = match printable(&holder.note) {
        empty if empty.is_empty() => empty,
        note => format!(" ({note})"),
    };
    format!(
        "held by {}{note} for {} (token {}, expires in {})",
        printable(&holder.owner),
        format_duration(holder.held_for),
        holder.token,
        format_duration(holder.expires_in.max(0.0)),
    )
}

/// A number of seconds for people, rounded.
pub(crate) fn format_duration(duration: f64) -> String {
    match duration {
        d if d < 1.0 => format!("{:.0} ms", d * 1000.0),
        d if d < 120.0 => format!("{d:.0} s"),
        d if d < 7200.0 => format!("{:.0} min", d / 60.0),
        d => format!("{:.0} h", d / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn an_error_names_the_holder_the_position_and_the_next_step() {
        let json = r#"{"lease": "f", "owner": "ci-7", "token": 9, "units": 1, "slots": [],
            "held_for": 0.02, "expires_in": 29.9, "note": "nightly"}"#;
        let holder: Holder = serde_json::from_str(json).unwrap();
        let mut held = Held::new(&Key::new(Kind::Lock, "jobs/a"), vec![holder], Some(2));
        held.waited = Some(Duration::from_secs(5));
        assert_eq!(
            Error::Held(Box::new(held)).to_string(),
            "jobs/a is held by ci-7 (nightly) for 20 ms (token 9, expires in 30 s); \
             2 are ahead of you; gave up after 5 s: try again, or give a longer wait()"
        );
    }
}
