//! Notifications of revocations, over one stream per client. They are hints: the store decides.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;

use crate::client::Inner;
use crate::events::{Reconnect, SseReader};
use crate::lease::State;

/// Time that the first renewal waits for the stream.
const FIRST_INBOX: Duration = Duration::from_millis(200);

/// The stream of one client, and the leases whose notifications arrive there.
pub(crate) struct Notifications {
    leases: Mutex<HashMap<String, Weak<State>>>,
    /// `None` before the stream is wanted; empty while it is not open.
    inbox: watch::Sender<Option<String>>,
}

#[derive(Deserialize)]
struct Hello {
    inbox: String,
    beat: f64,
}

#[derive(Deserialize)]
struct Notification {
    lease: String,
    event: String,
}

impl Notifications {
    pub(crate) fn new() -> Notifications {
        Notifications { leases: Mutex::default(), inbox: watch::Sender::new(None) }
    }

    /// Tell this lease of its revocation.
    pub(crate) fn expect(&self, fingerprint: &str, state: &Arc<State>) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.insert(fingerprint.into(), Arc::downgrade(state));
    }

    pub(crate) fn forget(&self, fingerprint: &str) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.remove(fingerprint);
    }

    fn revoked(&self, fingerprint: &str) {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let found = leases.get(fingerprint).and_then(Weak::upgrade);
        drop(leases);
        if let Some(state) = found {
            state.suspect();
        }
    }

    /// Whether the stream is open.
    pub(crate) fn is_open(&self) -> bool {
        self.inbox.borrow().as_ref().is_some_and(|inbox| !inbox.is_empty())
    }
}

/// The address of the stream; empty while it is not open. The first call opens it.
pub(crate) async fn inbox(client: &Arc<Inner>) -> String {
    let sender = &client.notifications.inbox;
    let mut receiver = sender.subscribe();
    let is_first = sender.send_if_modified(|inbox| {
        let is_first = inbox.is_none();
        inbox.get_or_insert_default();
        is_first
    });
    if is_first {
        let (weak, closed) = (Arc::downgrade(client), client.closed.clone());
        client.handle.spawn(async move { closed.run_until_cancelled(listen(weak)).await });
        let open = receiver.wait_for(|inbox| inbox.as_ref().is_some_and(|it| !it.is_empty()));
        let _ = tokio::time::timeout(FIRST_INBOX, open).await;
    }
    sender.borrow().clone().unwrap_or_default()
}

/// Read streams, one after another, until the client is dropped.
async fn listen(client: Weak<Inner>) {
    let mut pause = Reconnect::default();
    while let Some(inner) = client.upgrade() {
        let opened = inner.transport.stream("/v1/stream", "").await;
        if let Ok(response) = opened {
            let mut reader = SseReader::new(response);
            drop(inner);
            while let Ok(Some(event)) = reader.next().await {
                let Some(inner) = client.upgrade() else { return };
                let notifications = &inner.notifications;
                match event.kind.as_str() {
                    "hello" => {
                        if let Ok(hello) = serde_json::from_str::<Hello>(&event.data) {
                            reader.set_beat(hello.beat);
                            notifications.inbox.send_replace(Some(hello.inbox));
                            pause = Reconnect::default();
                        }
                    }
                    "notification" => match serde_json::from_str::<Notification>(&event.data) {
                        Ok(news) if news.event == "revoked" => notifications.revoked(&news.lease),
                        _ => {}
                    },
                    "bye" => break,
                    _ => {}
                }
            }
        }
        if let Some(inner) = client.upgrade() {
            inner.notifications.inbox.send_replace(Some(String::new()));
        }
        pause.wait().await;
    }
}
