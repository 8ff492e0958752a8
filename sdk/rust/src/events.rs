//! Server-sent events: what happens to locks, and the state of one lock after each change.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Response;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use tokio::sync::mpsc;

use crate::client::Inner;
use crate::names::{Key, decoded};
use crate::runtime::Task;
use crate::{Error, Kind, Status};

/// Events that wait for a slow reader. The stream is not read further meanwhile.
const BACKLOG: usize = 256;

/// Bytes of the longest event.
const MAX_EVENT: usize = 8 << 20;

// -- reading ---------------------------------------------------------------------------------------

/// One event of a stream.
#[derive(Debug, PartialEq)]
pub(crate) struct Sse {
    pub(crate) kind: String,
    pub(crate) data: String,
}

/// Splits bytes into events. Comments are left out; an id in them counts.
#[derive(Default)]
pub(crate) struct SseParser {
    buffer: Vec<u8>,
    read: usize,
    kind: String,
    data: Vec<String>,
    pub(crate) last_id: String,
}

impl SseParser {
    fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.read));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole event.
    fn next(&mut self) -> Option<Sse> {
        while let Some(end) = self.buffer[self.read..].iter().position(|byte| *byte == b'\n') {
            let raw = &self.buffer[self.read..self.read + end];
            self.read += end + 1;
            let line = String::from_utf8_lossy(raw.strip_suffix(b"\r").unwrap_or(raw)).into_owned();
            if line.is_empty() {
                let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
                if !data.is_empty() {
                    return Some(Sse { kind, data: data.join("\n") });
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            match field {
                "event" => self.kind = value,
                "data" => self.data.push(value),
                "id" => self.last_id = value,
                _ => {}
            }
        }
        None
    }
}

/// Reads events from an answer. A stream without a sign of life ends.
pub(crate) struct SseReader {
    response: Response,
    pub(crate) parser: SseParser,
    silence: Duration,
}

impl SseReader {
    pub(crate) fn new(response: Response) -> SseReader {
        let parser = SseParser::default();
        let mut reader = SseReader { response, parser, silence: Duration::ZERO };
        reader.set_beat(15.0);
        reader
    }

    /// Seconds between two signs of life. Two may be missing.
    pub(crate) fn set_beat(&mut self, beat: f64) {
        self.silence = Duration::try_from_secs_f64(2.0 * beat + 1.0).unwrap_or_default();
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Sse>, String> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            if self.parser.buffer.len() - self.parser.read > MAX_EVENT {
                return Err("an event is too long".into());
            }
            match tokio::time::timeout(self.silence, self.response.chunk()).await {
                Ok(Ok(Some(bytes))) => self.parser.feed(&bytes),
                Ok(Ok(None)) => return Ok(None),
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => return Err("the stream was silent for too long".into()),
            }
        }
    }
}

/// Growing pauses before a stream is opened again, with some chance in them.
#[derive(Default)]
pub(crate) struct Reconnect(u32);

impl Reconnect {
    pub(crate) async fn wait(&mut self) {
        let longest = (0.3 * f64::from(1 << self.0)).min(5.0);
        self.0 = (self.0 + 1).min(8);
        let mut byte = [0];
        let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut byte);
        let part = 0.1 + 0.9 * f64::from(byte[0]) / 255.0;
        tokio::time::sleep(Duration::from_secs_f64(longest * part)).await;
    }
}

// -- what users get --------------------------------------------------------------------------------

/// Something that happened to a lease.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// The server's time, in seconds since 1970.
    pub at: f64,
    /// `granted`, `queued`, `left`, `renewed`, `resized`, `revoked`, `released`, `expired` or `freed`.
    pub what: String,
    /// The kind of primitive.
    pub kind: Kind,
    /// The name: any bytes.
    #[serde(deserialize_with = "name")]
    pub name: Vec<u8>,
    /// Fingerprint of the lease id.
    pub lease: String,
    /// The holder or waiter, for people.
    pub owner: String,
    /// Its note; it can be empty.
    pub note: String,
    /// The fencing token.
    pub token: u64,
    /// Number of units; `None` for all units, of a writer.
    pub units: Option<u64>,
    /// Numbers of the units.
    pub slots: Vec<u32>,
    /// The reason that was given for it; it can be empty.
    pub reason: String,
    /// Seconds since the grant.
    pub held_for: Option<f64>,
    /// Seconds in the queue.
    pub waited: Option<f64>,
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    decoded(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// News of one lock.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// Something happened.
    Event(Event),
    /// Its state: first of all, and after each change.
    Status(Status),
}

/// News of one lock. See [`Client::watch`](crate::Client::watch).
pub type Watch = EventStream<WatchEvent>;

/// A stream of events. It connects again when it breaks, until it is dropped.
pub struct EventStream<T = Event> {
    receiver: mpsc::Receiver<Result<T, Error>>,
    _reading: Task<()>,
}

impl<T: Send + 'static> EventStream<T> {
    /// The next event. `None` after an error that another attempt does not mend.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        self.receiver.recv().await
    }
}

impl<T> std::fmt::Debug for EventStream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventStream")
    }
}

pub(crate) fn watch(client: Arc<Inner>, key: Key) -> Result<Watch, Error> {
    key.check()?;
    let name = crate::names::in_path(&key.name);
    let path = format!("/v1/watch/locks/{name}?kind={}", key.kind.as_str());
    Ok(open(client, path, |event| match event.kind.as_str() {
        "status" => Some(parsed(&event.data).map(WatchEvent::Status)),
        "" | "message" => Some(parsed(&event.data).map(WatchEvent::Event)),
        _ => None,
    }))
}

pub(crate) fn events(client: Arc<Inner>, prefix: &[u8]) -> EventStream {
    let path = format!("/v1/events?prefix={}", crate::names::in_path(prefix));
    open(client, path, |event| match event.kind.as_str() {
        "" | "message" => Some(parsed(&event.data)),
        _ => None,
    })
}

fn parsed<T: DeserializeOwned>(data: &str) -> Result<T, Error> {
    let unreadable = |error| Error::unavailable(format!("an event can't be read: {error}"));
    serde_json::from_str(data).map_err(unreadable)
}

fn open<T: Send + 'static>(
    client: Arc<Inner>,
    path: String,
    read: fn(Sse) -> Option<Result<T, Error>>,
) -> EventStream<T> {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let handle = client.handle.clone();
    let _reading = Task::spawn(&handle, async move {
        let (mut last_id, mut pause) = (String::new(), Reconnect::default());
        loop {
            match client.transport.stream(&path, &last_id).await {
                Ok(response) => {
                    let mut reader = SseReader::new(response);
                    while let Ok(Some(event)) = reader.next().await {
                        pause = Reconnect::default();
                        last_id.clone_from(&reader.parser.last_id);
                        if event.kind == "bye" {
                            break;
                        }
                        if let Some(item) = read(event) {
                            if sender.send(item).await.is_err() {
                                return;
                            }
                        }
                    }
                }
                Err(error) if error.is_unavailable() => {}
                Err(error) => {
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            }
            pause.wait().await;
        }
    });
    EventStream { receiver, _reading }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_may_arrive_in_any_pieces() {
        let bytes = b"id: s-1\nevent: hello\ndata: {}\n\nid: s-2\n: still here\n\ndata: a\r\ndata:b\r\n\r\n";
        for size in 1..bytes.len() {
            let (mut parser, mut found) = (SseParser::default(), vec![]);
            for piece in bytes.chunks(size) {
                parser.feed(piece);
                while let Some(event) = parser.next() {
                    found.push((event.kind, event.data, parser.last_id.clone()));
                }
            }
            let expected = [("hello", "{}", "s-1"), ("", "a\nb", "s-2")];
            let expected = expected.map(|(kind, data, id)| (kind.into(), data.into(), id.into()));
            assert_eq!(found, expected);
        }
    }
}
