//! Names, keys and lease ids, as the service spells them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SecureRandom;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Bytes of the longest name.
const MAX_NAME: usize = 512;

/// The kind of a primitive. Primitives of different kinds never exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// A lock.
    Lock,
    /// A semaphore with numbered slots.
    Semaphore,
    /// A readers-writer lock.
    RwLock,
    /// The lock of a task that runs once per interval. Clients in Python have it.
    TaskLock,
    /// A leader election. Clients in Python have it.
    Leader,
}

impl Kind {
    /// The word for this kind in the API: `lock`, `semaphore`, `rwlock`, `tasklock` or `leader`.
    ///
    /// ```
    /// assert_eq!(dibs::Kind::RwLock.as_str(), "rwlock");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Semaphore => "semaphore",
            Kind::RwLock => "rwlock",
            Kind::TaskLock => "tasklock",
            Kind::Leader => "leader",
        }
    }

    fn parse(word: &[u8]) -> Option<Kind> {
        use Kind::{Leader, Lock, RwLock, Semaphore, TaskLock};
        let all = [Lock, Semaphore, RwLock, TaskLock, Leader];
        all.into_iter().find(|kind| kind.as_str().as_bytes() == word)
    }
}

/// Bytes in URL-safe base64 without padding.
pub(crate) fn encoded(raw: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(raw)
}

/// Decode what [`encoded`] returns.
pub(crate) fn decoded(text: &str) -> Result<Vec<u8>, String> {
    let bytes = URL_SAFE_NO_PAD.decode(text);
    bytes.map_err(|error| format!("{text:?} is not URL-safe base64: {error}"))
}

/// A name as a path or a prefix contains it.
pub(crate) fn in_path(name: &[u8]) -> String {
    format!("base64:{}", encoded(name))
}

/// A kind and a name of any bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) name: Vec<u8>,
}

impl Key {
    pub(crate) fn new(kind: Kind, name: impl AsRef<[u8]>) -> Key {
        Key { kind, name: name.as_ref().to_vec() }
    }

    /// Fails unless the name has 1 to 512 bytes.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.name.len() {
            1..=MAX_NAME => Ok(()),
            length => Err(Error::Invalid(format!(
                "a name is 1 to {MAX_NAME} bytes long, and this one is {length}"
            ))),
        }
    }

    /// The key as commands contain it.
    pub(crate) fn wire(&self) -> String {
        encoded([self.kind.as_str().as_bytes(), b":", &self.name].concat())
    }

    pub(crate) fn from_wire(text: &str) -> Result<Key, String> {
        let raw = decoded(text)?;
        let split = raw.iter().position(|byte| *byte == b':');
        let found = split.and_then(|at| Some((Kind::parse(&raw[..at])?, raw[at + 1..].to_vec())));
        found.map(|(kind, name)| Key { kind, name }).ok_or_else(|| format!("unknown key {text:?}"))
    }

    /// The path of this lock.
    pub(crate) fn path(&self) -> String {
        format!("/v1/locks/{}", in_path(&self.name))
    }
}

/// For people: the name, and the kind unless it is a lock.
impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.kind != Kind::Lock {
            write!(f, "{} ", self.kind.as_str())?;
        }
        f.write_str(&shown(&self.name))
    }
}

/// A name for people. Bytes that are not printable are escaped.
pub(crate) fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for part in name.utf8_chunks() {
        text += &printable(part.valid());
        for byte in part.invalid() {
            text += &format!("\\x{byte:02x}");
        }
    }
    text
}

/// A text that cannot control a terminal.
pub(crate) fn printable(text: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escaped).collect()
}

/// A lease id that nobody can guess: 144 random bits.
pub(crate) fn new_id() -> Result<String, Error> {
    let mut bytes = [0; 18];
    let random = ring::rand::SystemRandom::new();
    random
        .fill(&mut bytes)
        .map_err(|_| Error::Invalid("the system has no random bytes for a lease id".into()))?;
    Ok(encoded(bytes))
}

/// The public name of a lease. Nobody can compute the id from it.
pub(crate) fn fingerprint(id: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, id.as_bytes());
    digest.as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_bytes_survive_the_way_there_and_back() {
        for name in [&b"jobs/a"[..], b"a:b", b"\x00\xff\n", "\u{1f512}/x".as_bytes(), b"/"] {
            let key = Key::new(Kind::RwLock, name);
            assert_eq!(Key::from_wire(&key.wire()).unwrap(), key);
        }
        assert!(Key::from_wire("bm9uZQ").is_err());
        assert_eq!(Key::new(Kind::Lock, "jobs/").path(), "/v1/locks/base64:am9icy8");
    }

    #[test]
    fn names_for_people_cannot_control_a_terminal() {
        let key = Key::new(Kind::Semaphore, b"a\x1b[2J\xff\xc3\xa9");
        assert_eq!(key.to_string(), "semaphore a\\u{1b}[2J\\xff\u{e9}");
    }

    #[test]
    fn names_have_bounds() {
        assert!(Key::new(Kind::Lock, "").check().is_err());
        assert!(Key::new(Kind::Lock, [0; 512]).check().is_ok());
        assert!(Key::new(Kind::Lock, [0; 513]).check().is_err());
    }

    #[test]
    fn a_fingerprint_is_that_of_the_service() {
        assert_eq!(fingerprint("abc"), "ba7816bf8f01cfea414140de");
        assert_ne!(new_id().unwrap(), new_id().unwrap());
        assert_eq!(new_id().unwrap().len(), 24);
    }
}
