//! The crate with a real `dibs serve`. Its URL, with an administrator's key, is in `DIBS_TEST_URL`.
//!
//! Without that variable nothing is tested here. `pytest tests/sdk` of the repository sets it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dibs::{Client, Error, Kind, LossReason, Rule, WatchEvent};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(20);

/// A client, and a directory that no other test uses.
fn service() -> Option<(Client, String)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let Ok(url) = std::env::var("DIBS_TEST_URL") else {
        eprintln!("skipped: DIBS_TEST_URL is not set");
        return None;
    };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let client = Client::builder(url).owner("rust-tests").connect().unwrap();
    Some((client, format!("rust/{}-{number}/", std::process::id())))
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.expect("in time")
}

#[tokio::test]
async fn names_of_any_bytes_are_locks_of_their_own() {
    let Some((client, dir)) = service() else { return };
    let mut leases = vec![];
    for end in
        [&b"a"[..], b"a/", b"\x00", b"\xff\xfe", b"%61", b"a?b#c", b"..", "\u{1f512}".as_bytes()]
    {
        let name = [dir.as_bytes(), end].concat();
        let lease = client.lock(&name).try_acquire().await.unwrap().expect("it is free");
        assert!(client.lock(&name).try_acquire().await.unwrap().is_none());
        let status = client.status(Kind::Lock, &name).await.unwrap();
        assert_eq!((status.name, status.holders[0].token), (name, lease.token()));
        assert_eq!(status.holders[0].lease, lease.fingerprint());
        leases.push(lease);
    }
    assert_eq!(client.list(&dir).await.unwrap().len(), leases.len());
}

#[tokio::test]
async fn tokens_rise_and_waiters_are_served_in_turn() {
    let Some((client, dir)) = service() else { return };
    let lock = client.lock(format!("{dir}a")).wait(SOON);
    let first = lock.acquire().await.unwrap();
    let next = lock.clone().note("next");
    let waiting = tokio::spawn(async move { next.acquire().await });
    let mut news = client.watch(Kind::Lock, first.name()).unwrap();
    loop {
        match soon(news.next()).await.unwrap().unwrap() {
            WatchEvent::Status(status) if status.waiting == 1 => {
                assert_eq!(status.waiters[0].note, "next");
                break;
            }
            _ => {}
        }
    }
    assert!(!waiting.is_finished());
    first.release().await.unwrap();
    let second = soon(waiting).await.unwrap().unwrap();
    assert!(second.token() > first.token());
    second.renew().await.unwrap();
    assert!(second.remaining() > Duration::from_secs(26));
}

#[tokio::test]
async fn a_semaphore_has_slots_and_a_capacity() {
    let Some((client, dir)) = service() else { return };
    let pool = client.semaphore(format!("{dir}pool"), 3);
    let two = pool.clone().units(2).acquire().await.unwrap();
    let one = pool.acquire().await.unwrap();
    let mut slots = [two.slots(), one.slots()].concat();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
    assert!(pool.try_acquire().await.unwrap().is_none());
    let error = pool.clone().units(4).try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_) | Error::TooLarge(_)), "{error}");
}

#[tokio::test]
async fn readers_share_and_a_writer_is_alone() {
    let Some((client, dir)) = service() else { return };
    let table = client.rwlock(format!("{dir}t"));
    let readers = [table.read().acquire().await.unwrap(), table.read().acquire().await.unwrap()];
    assert!(table.write().try_acquire().await.unwrap().is_none());
    for reader in readers {
        reader.release().await.unwrap();
    }
    let writer = table.write().acquire().await.unwrap();
    assert_eq!(writer.kind(), Kind::RwLock);
    assert!(table.read().try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_wait_ends_with_the_holder_and_leaves_no_trace() {
    let Some((client, dir)) = service() else { return };
    let lock = client.lock(format!("{dir}a")).note("nightly");
    let lease = lock.acquire().await.unwrap();
    let wait = lock.clone().wait(Duration::from_millis(300));
    let Error::Held(held) = wait.acquire().await.unwrap_err() else { panic!("it is held") };
    assert_eq!(
        (held.holders[0].owner.as_str(), held.holders[0].note.as_str()),
        ("rust-tests", "nightly")
    );
    assert!(held.to_string().contains("held by rust-tests (nightly) for "), "{held}");
    assert_eq!(client.status(Kind::Lock, lease.name()).await.unwrap().waiting, 0);
    let forever = lock.clone();
    let dropped = timeout(Duration::from_millis(300), forever.acquire()).await;
    assert!(dropped.is_err());
    assert!(client.flush(SOON).await);
    assert_eq!(client.status(Kind::Lock, lease.name()).await.unwrap().waiting, 0);
    let name = lease.name().to_vec();
    drop(lease);
    assert!(client.flush(SOON).await);
    assert!(client.status(Kind::Lock, name).await.unwrap().holders.is_empty());
}

#[tokio::test]
async fn a_revocation_reaches_the_holder_before_its_next_renewal() {
    let Some((client, dir)) = service() else { return };
    let lock = client.lock(format!("{dir}a")).ttl(Duration::from_secs(600));
    let lease = lock.acquire().await.unwrap();
    let lost = lease.lost();
    lease.renew().await.unwrap(); // which opens the stream of notifications
    let revoked = client.revoke(Kind::Lock, lease.name(), "maintenance").await.unwrap();
    assert_eq!(revoked.count, 1);
    let loss = soon(lost).await.unwrap();
    assert_eq!((loss.reason, loss.detail.as_str()), (LossReason::Revoked, "maintenance"));
    assert!(lease.ensure(Duration::ZERO).unwrap_err().is_lost());
    let free = client.revoke(Kind::Lock, format!("{dir}none"), "nobody").await.unwrap();
    assert_eq!(free.count, 0);
}

#[tokio::test]
async fn events_tell_what_happens() {
    let Some((client, dir)) = service() else { return };
    let mut events = client.events(&dir);
    let mut number = 0;
    let event = loop {
        // until the stream is open, events are missed
        number += 1;
        let lease = client.lock(format!("{dir}{number}")).acquire().await.unwrap();
        lease.release().await.unwrap();
        if let Ok(event) = timeout(Duration::from_millis(500), events.next()).await {
            break event.unwrap().unwrap();
        }
    };
    assert!(event.name.starts_with(dir.as_bytes()));
    assert_eq!(event.owner, "rust-tests");
}

#[tokio::test]
async fn restrictions_are_set_listed_and_deleted() {
    let Some((client, dir)) = service() else { return };
    let denied = Rule { regions_denied: vec!["XA".into()], ..Rule::default() };
    let error = client.restrict(&dir, &denied).await.unwrap_err(); // its store has no region
    assert!(error.to_string().contains("no placement is allowed"), "{error}");
    let rule = Rule::default();
    client.restrict(&dir, &rule).await.unwrap();
    let found = client.restriction(&dir).await.unwrap().unwrap();
    assert_eq!((&found.rule, found.directory), (&rule, dir.trim_end_matches('/').into()));
    assert!(client.restrictions().await.unwrap().iter().any(|each| each.rule == rule));
    client.unrestrict(&dir).await.unwrap();
    assert_eq!(client.restriction(&dir).await.unwrap(), None);
}

#[tokio::test]
async fn a_wrong_key_is_refused_with_advice() {
    let Some((_, dir)) = service() else { return };
    let url = std::env::var("DIBS_TEST_URL").unwrap();
    let client = Client::builder(url).api_key("dibs_wrong").connect().unwrap();
    let error = client.lock(format!("{dir}a")).acquire().await.unwrap_err();
    assert!(matches!(error, Error::Forbidden(_)), "{error}");
    assert!(!error.to_string().contains("dibs_wrong"));
}

#[cfg(feature = "blocking")]
#[test]
fn threads_use_the_same_locks() {
    let Some((client, dir)) = service() else { return };
    let client = dibs::blocking::Client::from(client);
    let lock = client.lock(format!("{dir}a")).wait(SOON);
    let lease = lock.acquire().unwrap();
    assert!(lock.try_acquire().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.acquire().unwrap().token());
        lease.release().unwrap();
        assert!(waiting.join().unwrap() > lease.token());
    });
    assert!(lease.ensure(Duration::ZERO).is_err());
    assert!(client.flush(SOON));
    assert_eq!(client.list(&dir).unwrap().iter().map(|each| each.holding).sum::<u64>(), 0);
}
