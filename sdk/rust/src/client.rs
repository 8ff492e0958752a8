//! A client of the lock service.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::events::{EventStream, Watch, events, watch};
use crate::lock::{Lock, RwLock, Semaphore};
use crate::names::{Key, encoded, printable};
use crate::notifications::Notifications;
use crate::runtime::Task;
use crate::status::{Revoked, Status};
use crate::transport::{Request, Transport};
use crate::url::{Address, KeySource};
use crate::{Error, Kind, boot, notifications, runtime};

/// Bytes of the longest owner.
const MAX_OWNER: usize = 200;

/// Keys on a page of [`Client::list`].
const PAGE: usize = 1000;

/// What all leases and calls of a client share.
pub(crate) struct Inner {
    pub(crate) transport: Transport,
    pub(crate) notifications: Notifications,
    pub(crate) owner: String,
    pub(crate) handle: Handle,
    /// Cancelled when the client is dropped.
    pub(crate) closed: CancellationToken,
    background: TaskTracker,
}

impl Inner {
    /// Run something that may outlive its caller, and that [`Client::flush`] waits for.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn_on(future, &self.handle);
    }

    pub(crate) fn has_inbox(&self) -> bool {
        self.notifications.is_open()
    }
}

/// The address of notifications; the first call opens their stream.
pub(crate) async fn inbox(client: &Arc<Inner>) -> String {
    notifications::inbox(client).await
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// A client of the lock service. Clones share connections.
///
/// It follows no redirects, and ignores proxy variables: an API key is for one server.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// Options of a [`Client`]. See [`Client::builder`].
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    url: String,
    api_key: Option<String>,
    owner: Option<String>,
    call_timeout: Duration,
}

impl ClientBuilder {
    /// The API key. Without it the key is in the URL (`https://KEY@host`), in the file that the option
    /// `key_file=` of the URL names, in `DIBS_API_KEY`, or in the file that `DIBS_API_KEY_FILE` names.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Who you are, for people. The default is `host/pid`.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The longest time for one answer; the default is 10 s. Calls for leases with a short ttl have less.
    pub fn call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// Make the client. It connects with its first request.
    pub fn connect(self) -> Result<Client, Error> {
        let mut address = Address::parse(&self.url)?;
        if let Some(key) = self.api_key {
            address.key = KeySource::Given(key);
        }
        let owner =
            self.owner.unwrap_or_else(|| format!("{}/{}", boot::host_name(), std::process::id()));
        let owner = printable(&owner);
        if owner.len() > MAX_OWNER {
            return Err(Error::Invalid(format!("an owner has at most {MAX_OWNER} bytes")));
        }
        let inner = Inner {
            transport: Transport::new(address, self.call_timeout.as_secs_f64().max(0.1))?,
            notifications: Notifications::new(),
            owner,
            handle: runtime::handle()?.clone(),
            closed: CancellationToken::new(),
            background: TaskTracker::new(),
        };
        Ok(Client { inner: Arc::new(inner) })
    }
}

impl Client {
    /// A client of the service at `url`, such as `https://locks.example`. It connects with its first request.
    ///
    /// The options of the URL are `cafile=FILE` (trust these certificates), `key_file=FILE`, and
    /// `insecure=true` for `http://` to another machine. The API key is usually in `DIBS_API_KEY`.
    ///
    /// ```
    /// let client = dibs::Client::connect("http://127.0.0.1:5327")?;
    /// # let lock = client.lock("jobs/nightly");
    /// # Ok::<_, dibs::Error>(())
    /// ```
    pub fn connect(url: impl Into<String>) -> Result<Client, Error> {
        Client::builder(url).connect()
    }

    /// A client with more options.
    ///
    /// ```
    /// let client = dibs::Client::builder("https://locks.example")
    ///     .api_key("dibs_example")
    ///     .owner("web-3")
    ///     .connect()?;
    /// # Ok::<_, dibs::Error>(())
    /// ```
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        let call_timeout = Duration::from_secs(10);
        ClientBuilder { url: url.into(), api_key: None, owner: None, call_timeout }
    }

    /// A lock. A name is 1 to 512 bytes of any kind; `/` separates directories.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Lock {
        Lock::new(self.clone(), name)
    }

    /// A semaphore with `capacity` units.
    pub fn semaphore(&self, name: impl AsRef<[u8]>, capacity: u32) -> Semaphore {
        Semaphore::new(self.clone(), name, capacity)
    }

    /// A readers-writer lock.
    pub fn rwlock(&self, name: impl AsRef<[u8]>) -> RwLock {
        RwLock::new(self.clone(), name)
    }

    /// Who holds it, and who waits.
    ///
    /// ```no_run
    /// # async fn example(client: dibs::Client) -> Result<(), dibs::Error> {
    /// let status = client.status(dibs::Kind::Lock, "jobs/nightly").await?;
    /// for holder in &status.holders {
    ///     println!("{} holds it, with token {}", holder.owner, holder.token);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn status(&self, kind: Kind, name: impl AsRef<[u8]>) -> Result<Status, Error> {
        #[derive(Deserialize)]
        #[serde(tag = "is", rename_all = "lowercase")]
        enum Reply {
            Status(Status),
            Failed { reason: String, detail: String },
        }
        let key = Key::new(kind, name);
        key.check()?;
        let command = json!({"op": "inspect", "key": key.wire()});
        let found = self.on_runtime(|inner| async move {
            inner.transport.command(command, inner.transport.call_timeout).await
        });
        match found.await? {
            Reply::Status(status) => Ok(status),
            Reply::Failed { reason, detail } if reason == "forbidden" => {
                Err(Error::Forbidden(detail))
            }
            Reply::Failed { detail, .. } => Err(Error::unavailable(format!("{key}: {detail}"))),
        }
    }

    /// All locks, semaphores and others in use whose names begin with `prefix`; all of them if it is empty.
    ///
    /// Lists what your key may read.
    pub async fn list(&self, prefix: impl AsRef<[u8]>) -> Result<Vec<Status>, Error> {
        #[derive(Deserialize)]
        struct Page {
            items: Vec<Status>,
            cursor: Option<String>,
        }
        let prefix = encoded(prefix);
        let mut path = format!("/v1/scan?names=base64:{prefix}&limit={PAGE}");
        let mut found = vec![];
        loop {
            let page: Page = self.call(Method::GET, path, None).await?;
            found.extend(page.items);
            let Some(cursor) = page.cursor else { return Ok(found) };
            path = format!("/v1/scan?names=base64:{prefix}&limit={PAGE}&cursor={cursor}");
        }
    }

    /// Revoke all leases on a lock. Your key needs the scope `force`.
    ///
    /// The holders are notified and cannot renew any more. Their units stay taken until their leases end.
    pub async fn revoke(
        &self,
        kind: Kind,
        name: impl AsRef<[u8]>,
        reason: &str,
    ) -> Result<Revoked, Error> {
        self.force(&Key::new(kind, name), reason, None).await
    }

    /// Revoke one lease, of which you know the [fingerprint](crate::Holder::lease).
    pub async fn revoke_one(
        &self,
        kind: Kind,
        name: impl AsRef<[u8]>,
        fingerprint: &str,
        reason: &str,
    ) -> Result<Revoked, Error> {
        self.force(&Key::new(kind, name), reason, Some(fingerprint)).await
    }

    async fn force(&self, key: &Key, reason: &str, lease: Option<&str>) -> Result<Revoked, Error> {
        use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
        key.check()?;
        let reason = utf8_percent_encode(reason, NON_ALPHANUMERIC);
        let kind = key.kind.as_str();
        let mut path = format!("{}?force=true&kind={kind}&reason={reason}", key.path());
        if let Some(lease) = lease {
            path += &format!("&lease={}", utf8_percent_encode(lease, NON_ALPHANUMERIC));
        }
        let found = self.on_runtime(|inner| async move {
            let transport = &inner.transport;
            let request = Request::new(Method::DELETE, &path, transport.call_timeout);
            let answer = transport.send(request).await?;
            match answer.status.as_u16() {
                200 => transport.parse_answer(&answer),
                404 => Ok(Revoked { count: 0, ends_in: 0.0 }),
                _ => Err(transport.explain(&answer)),
            }
        });
        found.await
    }

    /// What happens to the leases of all names that begin with `prefix`, from now on.
    pub fn events(&self, prefix: impl AsRef<[u8]>) -> EventStream {
        events(self.inner.clone(), prefix.as_ref())
    }

    /// The state of one lock, now and after each change.
    ///
    /// ```no_run
    /// # async fn example(client: dibs::Client) -> Result<(), dibs::Error> {
    /// let mut news = client.watch(dibs::Kind::Lock, "jobs/nightly")?;
    /// while let Some(news) = news.next().await {
    ///     if let dibs::WatchEvent::Status(status) = news? {
    ///         println!("{} hold it, {} wait", status.holding, status.waiting);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self, kind: Kind, name: impl AsRef<[u8]>) -> Result<Watch, Error> {
        watch(self.inner.clone(), Key::new(kind, name))
    }

    /// Wait until what was dropped is released, at most for `limit`. Returns whether all is.
    ///
    /// Call it before the process ends, if leases may have been dropped.
    pub async fn flush(&self, limit: Duration) -> bool {
        let done = self.on_runtime(move |inner| async move {
            inner.background.close();
            let done = tokio::time::timeout(limit, inner.background.wait()).await;
            inner.background.reopen();
            Ok(done.is_ok())
        });
        done.await.unwrap_or(false)
    }

    /// Run something in the runtime of this crate. It ends if the caller drops the future.
    pub(crate) fn on_runtime<T, F>(
        &self,
        make: impl FnOnce(Arc<Inner>) -> F,
    ) -> Task<Result<T, Error>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        Task::spawn(&self.inner.handle, make(self.inner.clone()))
    }

    /// Send a request, and read the JSON of its answer.
    pub(crate) async fn call<T: DeserializeOwned + Send + 'static>(
        &self,
        method: Method,
        path: String,
        body: Option<Value>,
    ) -> Result<T, Error> {
        let found = self.on_runtime(|inner| async move {
            let transport = &inner.transport;
            let mut request = Request::new(method, &path, transport.call_timeout);
            request.body = body.as_ref();
            transport.read(request).await
        });
        found.await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client of {}", self.inner.transport.base)
    }
}
