//! What the crate does when answers are lost, late or wrong, against a server that follows a script.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dibs::{Client, Error, LossReason};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

/// A request, as far as scripts look at it.
#[derive(Debug, Clone)]
struct Request {
    method: String,
    path: String,
    lease_id: String,
    body: Value,
}

impl Request {
    /// The operation of a command, or the method.
    fn op(&self) -> &str {
        self.body["commands"][0]["op"].as_str().unwrap_or(&self.method)
    }
}

enum Answer {
    /// Status and JSON of the service itself.
    Json(u16, Value),
    /// The same, from something else.
    Stranger(u16),
    /// Hang up without an answer.
    HangUp,
    /// Never answer.
    Silence,
}

struct Server {
    url: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers each request with `script`, which gets it and the number of earlier requests of that kind.
    fn start(script: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://dibs_key@{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::<Request>::new()));
        let (script, noted) = (Arc::new(script), seen.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (script, noted) = (script.clone(), noted.clone());
                thread::spawn(move || serve(stream.unwrap(), &*script, &noted));
            }
        });
        Server { url, seen }
    }

    fn client(&self) -> Client {
        Client::connect(&self.url).unwrap()
    }

    fn requests(&self, op: &str) -> Vec<Request> {
        self.seen.lock().unwrap().iter().filter(|each| each.op() == op).cloned().collect()
    }

    /// Wait for a request.
    async fn request(&self, op: &str) -> Request {
        loop {
            if let Some(found) = self.requests(op).pop() {
                return found;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

fn serve(
    mut stream: TcpStream,
    script: &dyn Fn(&Request, usize) -> Answer,
    seen: &Mutex<Vec<Request>>,
) {
    while let Some(request) = read(&mut stream) {
        let before = {
            let mut seen = seen.lock().unwrap();
            let before = seen.iter().filter(|each| each.op() == request.op()).count();
            seen.push(request.clone());
            before
        };
        let (status, head, body) = match script(&request, before) {
            Answer::Json(status, body) => (status, "dibs-server: s1\r\n", body.to_string()),
            Answer::Stranger(status) => (status, "", "{}".into()),
            Answer::HangUp => return,
            Answer::Silence => return thread::sleep(Duration::from_secs(30)),
        };
        let text =
            format!("HTTP/1.1 {status} x\r\n{head}content-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut head = vec![];
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let header = |name: &str| {
        let start = format!("{name}: ");
        head.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or("").to_owned()
    };
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let mut words = head.split(' ').map(str::to_owned);
    Some(Request {
        method: words.next()?,
        path: words.next()?,
        lease_id: header("dibs-lease-id"),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}

fn granted(ttl: f64) -> Answer {
    Answer::Json(200, json!({"sequencer": 7, "remaining": ttl, "slots": []}))
}

fn reply(reply: Value) -> Answer {
    Answer::Json(200, json!({ "replies": [reply] }))
}

fn held() -> Answer {
    let holder = json!({"lease": "f", "owner": "ci-7", "token": 6, "units": 1, "slots": [0],
        "held_for": 2.0, "expires_in": 20.0});
    let (kind, title) = ("/problems/held", "Resource is held");
    Answer::Json(409, json!({"type": kind, "title": title, "holders": [holder], "position": 3}))
}

/// Grants everything, and releases it; `renew` answers renewals.
fn granting(ttl: f64, renew: fn(usize) -> Answer) -> Server {
    Server::start(move |request, before| match request.op() {
        "POST" => granted(ttl),
        "renew" => renew(before),
        "release" => reply(json!({"is": "released"})),
        _ => Answer::HangUp,
    })
}

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}

#[tokio::test]
async fn a_request_without_an_answer_is_sent_again_under_its_id() {
    let server = Server::start(|request, before| match (request.op(), before) {
        ("POST", 0) => Answer::HangUp,
        ("POST", _) => granted(30.0),
        _ => reply(json!({"is": "released"})),
    });
    let client = server.client();
    let lease = client.lock("a").try_acquire().await.unwrap().unwrap();
    assert_eq!(lease.token(), 7);
    let posts = server.requests("POST");
    assert_eq!(posts.len(), 2);
    assert_eq!(posts[0].lease_id, posts[1].lease_id);
    lease.release().await.unwrap();
    let release = &server.requests("release")[0].body["commands"][0];
    assert_eq!(release["id"], posts[0].lease_id);
    assert!(release["tombstone"].as_f64().unwrap() >= 60.0, "a copy may be under way");
}

#[tokio::test]
async fn an_unanswered_renewal_costs_the_lease_at_its_deadline_and_not_before() {
    let server = granting(3.0, |_| Answer::Silence);
    let lock = server.client().lock("a").ttl(seconds(3.0));
    let lease = lock.acquire().await.unwrap();
    let (token, lost) = (lease.cancellation_token(), lease.lost());
    let left = lease.remaining();
    let began = std::time::Instant::now();
    let error = lease.run(std::future::pending::<()>()).await.unwrap_err();
    let took = began.elapsed();
    assert!(error.is_lost(), "{error}");
    assert!(took <= left + seconds(0.3), "before the store lets anybody else have it: {took:?}");
    assert!(took >= left - seconds(0.1), "unknown is not lost: {took:?}");
    assert!(token.is_cancelled());
    assert_eq!(lost.await.unwrap().reason, LossReason::Expired);
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert!(lease.ensure(Duration::ZERO).unwrap_err().to_string().contains("before its deadline"));
    assert!(server.requests("renew").len() > 1, "it was tried again");
}

#[tokio::test]
async fn a_renewal_that_fails_for_a_while_loses_nothing() {
    let server = granting(2.0, |before| match before {
        0 => Answer::HangUp,
        1 => Answer::Json(503, json!({"type": "/problems/unavailable", "detail": "away"})),
        2 => Answer::Stranger(410),
        3 => reply(json!({"is": "failed", "reason": "busy", "detail": "busy"})),
        _ => reply(json!({"is": "renewed", "ttl": 2.0})),
    });
    let lease = server.client().lock("a").ttl(seconds(2.0)).acquire().await.unwrap();
    lease.run(sleep(seconds(3.0))).await.unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn the_stores_word_that_it_is_lost_counts_at_once() {
    let server = granting(30.0, |_| {
        reply(json!({"is": "lost", "reason": "revoked", "detail": "maintenance"}))
    });
    let lease = server.client().lock("a").acquire().await.unwrap();
    let loss = timeout(seconds(8.0), lease.lost()).await.unwrap().unwrap();
    assert_eq!((loss.reason, loss.detail.as_str()), (LossReason::Revoked, "maintenance"));
    assert!(lease.release().await.unwrap_err().is_lost());
}

#[tokio::test]
async fn an_acquire_that_is_dropped_gives_its_id_up() {
    let server = Server::start(|request, _| match request.op() {
        "POST" => Answer::Silence,
        _ => reply(json!({"is": "unknown"})),
    });
    let client = server.client();
    let acquire = client.lock("a").wait(seconds(60.0));
    assert!(timeout(seconds(0.3), acquire.acquire()).await.is_err());
    let release = server.request("release").await;
    assert_eq!(release.body["commands"][0]["id"], server.requests("POST")[0].lease_id);
    assert!(release.body["commands"][0]["tombstone"].as_f64().unwrap() >= 60.0);
    assert!(client.flush(seconds(5.0)).await);
}

#[tokio::test]
async fn a_lease_that_is_dropped_is_released_in_the_background() {
    let server = granting(30.0, |_| Answer::Silence);
    let client = server.client();
    let lease = client.lock("a").acquire().await.unwrap();
    let (token, lost) = (lease.cancellation_token(), lease.lost());
    thread::spawn(move || drop(lease)).join().unwrap(); // where no runtime is
    assert!(token.is_cancelled());
    assert_eq!(lost.await, None);
    assert!(client.flush(seconds(5.0)).await);
    let id = server.requests("POST")[0].lease_id.clone();
    assert_eq!(server.request("release").await.body["commands"][0]["id"], id);
}

#[tokio::test]
async fn a_release_without_an_answer_is_repeated_in_the_background() {
    let server = Server::start(|request, before| match (request.op(), before) {
        ("POST", _) => granted(30.0),
        ("release", 0..=1) => Answer::HangUp,
        _ => reply(json!({"is": "released"})),
    });
    let client = server.client();
    let lease = client.lock("a").acquire().await.unwrap();
    assert!(lease.release().await.unwrap_err().is_unavailable());
    assert!(client.flush(seconds(5.0)).await);
    assert_eq!(server.requests("release").len(), 3);
}

#[tokio::test]
async fn only_the_service_itself_grants() {
    let server = Server::start(|_, _| Answer::Stranger(200));
    let error = server.client().lock("a").acquire().await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[tokio::test]
async fn a_wait_that_ends_names_the_holder_and_leaves_the_queue() {
    let server = Server::start(|request, _| match request.op() {
        "POST" => {
            thread::sleep(Duration::from_millis(200));
            held()
        }
        _ => reply(json!({"is": "released"})),
    });
    let lock = server.client().lock("a").wait(seconds(0.1));
    let error = lock.acquire().await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("a is held by ci-7 for 2 s (token 6, expires in 20 s); 3 are ahead"));
    assert!(text.contains("gave up after") && text.ends_with("or give a longer wait()"), "{text}");
    assert_eq!(server.requests("release").len(), 1);
    assert!(server.requests("POST")[0].path.contains("wait=0."));
}

#[tokio::test]
async fn a_late_grant_is_renewed_before_it_counts() {
    let server = Server::start(|request, _| match request.op() {
        "POST" => {
            thread::sleep(Duration::from_millis(800));
            granted(2.0)
        }
        "renew" => reply(json!({"is": "renewed", "ttl": 2.0})),
        _ => reply(json!({"is": "released"})),
    });
    let lock = server.client().lock("a").ttl(seconds(2.0)).wait(seconds(10.0));
    let lease = lock.acquire().await.unwrap();
    assert!(lease.remaining() > seconds(1.2), "{:?}", lease.remaining());
}

#[tokio::test]
async fn an_id_that_has_ended_is_replaced() {
    let server = Server::start(|request, before| match (request.op(), before) {
        ("POST", 0) => Answer::Json(410, json!({"type": "/problems/lost"})),
        ("POST", _) => granted(30.0),
        _ => reply(json!({"is": "unknown"})),
    });
    let lease = server.client().lock("a").wait(seconds(5.0)).acquire().await.unwrap();
    let posts = server.requests("POST");
    assert_ne!(posts[0].lease_id, posts[1].lease_id);
    drop(lease);
}
