//! Requests to the service, and what its answers mean.

use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;
use crate::error::seconds;
use crate::status::Holder;
use crate::url::{Address, KeySource};

/// Seconds within which a connection must be open.
pub(crate) const CONNECT_TIMEOUT: f64 = 5.0;

const FORMAT: &str = "1";
const FORMAT_HEADER: &str = "dibs-format";
const SERVER_HEADER: &str = "dibs-server";
const LEASE_ID: &str = "dibs-lease-id";

/// Sends requests. All of them run in the runtime of this crate.
pub(crate) struct Transport {
    http: reqwest::Client,
    pub(crate) base: String,
    source: KeySource,
    key: RwLock<Option<HeaderValue>>,
    pub(crate) call_timeout: f64,
}

/// An answer of the service itself, with any status.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    body: Vec<u8>,
    retry_after: Option<f64>,
}

/// A failure, as `application/problem+json`.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    title: String,
    detail: String,
    pub(crate) retry_after: Option<f64>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) position: Option<u32>,
}

/// A request without a body, or with JSON.
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: &'a str,
    pub(crate) lease_id: Option<&'a str>,
    pub(crate) body: Option<&'a Value>,
    /// Seconds for all of the answer; `None` for a stream.
    pub(crate) timeout: Option<f64>,
    pub(crate) headers: HeaderMap,
}

impl<'a> Request<'a> {
    pub(crate) fn new(method: Method, path: &'a str, timeout: f64) -> Request<'a> {
        let timeout = Some(timeout);
        Request { method, path, lease_id: None, body: None, timeout, headers: HeaderMap::new() }
    }
}

impl Transport {
    pub(crate) fn new(address: Address, call_timeout: f64) -> Result<Transport, Error> {
        let builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls(address.cafile.as_deref())?)
            .user_agent(concat!("dibs-rust/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .tcp_nodelay(true)
            .pool_idle_timeout(Duration::from_secs(30))
            .connect_timeout(seconds(CONNECT_TIMEOUT));
        let http = builder.build().map_err(|error| Error::Invalid(full(&error)))?;
        let transport = Transport {
            http,
            base: address.base,
            source: address.key,
            key: RwLock::new(None),
            call_timeout,
        };
        transport.load_key()?;
        Ok(transport)
    }

    /// Look the API key up again; return whether it has changed.
    fn load_key(&self) -> Result<bool, Error> {
        let found = self.source.find()?.map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {key}")).expect("it is ASCII");
            value.set_sensitive(true);
            value
        });
        let mut key = self.key.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let changed = *key != found;
        *key = found;
        Ok(changed)
    }

    /// Send a request and read the head of the answer.
    ///
    /// `Error::Unavailable` means that the request may have arrived, or not.
    async fn begin(&self, request: &Request<'_>) -> Result<Response, Error> {
        let mut builder = self
            .http
            .request(request.method.clone(), format!("{}{}", self.base, request.path))
            .header(FORMAT_HEADER, FORMAT)
            .headers(request.headers.clone());
        if let Some(key) = &*self.key.read().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            builder = builder.header(AUTHORIZATION, key.clone());
        }
        if let Some(id) = request.lease_id {
            builder = builder.header(LEASE_ID, id);
        }
        if let Some(body) = request.body {
            builder = builder.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        if let Some(timeout) = request.timeout {
            builder = builder.timeout(seconds(timeout));
        }
        builder.send().await.map_err(|error| self.broken(&error))
    }

    /// Send a request; return the head of an answer of the service itself.
    async fn open(&self, request: &Request<'_>) -> Result<Response, Error> {
        let mut response = self.begin(request).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.load_key().unwrap_or(false) {
            response = self.begin(request).await?;
        }
        if !response.headers().contains_key(SERVER_HEADER) {
            return Err(self.stranger(&response));
        }
        match response.headers().get(FORMAT_HEADER) {
            Some(theirs) if theirs != FORMAT => Err(Error::Invalid(format!(
                "{} speaks format {theirs:?}, and this crate format {FORMAT}: install the release \
                 that fits the service",
                self.base
            ))),
            _ => Ok(response),
        }
    }

    /// Send a request, and return the whole answer.
    pub(crate) async fn send(&self, request: Request<'_>) -> Result<Answer, Error> {
        let response = self.open(&request).await?;
        let (status, retry_after) = (response.status(), retry_after(&response));
        let body = response.bytes().await.map_err(|error| self.broken(&error))?.to_vec();
        Ok(Answer { status, body, retry_after })
    }

    /// Send a request that needs a 200, and read its JSON.
    pub(crate) async fn read<T: DeserializeOwned>(&self, request: Request<'_>) -> Result<T, Error> {
        let answer = self.send(request).await?;
        if answer.status != StatusCode::OK {
            return Err(self.explain(&answer));
        }
        self.parse(&answer.body)
    }

    /// Apply one command with `/v1/batch`, and return its reply.
    pub(crate) async fn command<T: DeserializeOwned>(
        &self,
        command: Value,
        timeout: f64,
    ) -> Result<T, Error> {
        #[derive(Deserialize)]
        struct Replies<T> {
            replies: (T,),
        }
        let body = serde_json::json!({"commands": [command]});
        let mut request = Request::new(Method::POST, "/v1/batch", timeout);
        request.body = Some(&body);
        let found: Replies<T> = self.read(request).await?;
        Ok(found.replies.0)
    }

    /// Begin a stream of events.
    pub(crate) async fn stream(&self, path: &str, last_id: &str) -> Result<Response, Error> {
        let mut request = Request::new(Method::GET, path, 0.0);
        request.timeout = None;
        if let Ok(value) = HeaderValue::try_from(last_id) {
            if !last_id.is_empty() {
                request.headers.insert("last-event-id", value);
            }
        }
        let head = tokio::time::timeout(seconds(self.call_timeout), self.open(&request));
        let response = head.await.map_err(|_| self.silent())??;
        if response.status() != StatusCode::OK {
            let (status, retry_after) = (response.status(), retry_after(&response));
            let body = tokio::time::timeout(seconds(self.call_timeout), response.bytes());
            let body = body.await.ok().and_then(Result::ok).unwrap_or_default().to_vec();
            return Err(self.explain(&Answer { status, body, retry_after }));
        }
        Ok(response)
    }

    /// The body as JSON.
    pub(crate) fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(body).map_err(|error| {
            Error::unavailable(format!("{} answered what can't be read: {error}", self.base))
        })
    }

    pub(crate) fn parse_answer<T: DeserializeOwned>(&self, answer: &Answer) -> Result<T, Error> {
        self.parse(&answer.body)
    }

    // -- errors ---------------------------------------------------------------------------------

    /// The error for an answer other than 200.
    pub(crate) fn explain(&self, answer: &Answer) -> Error {
        let problem = answer.problem();
        let told = match (problem.detail.is_empty(), problem.title.is_empty()) {
            (false, _) => problem.detail,
            (true, false) => problem.title,
            _ => format!("status {}", answer.status),
        };
        let message = format!("{}: {told}", self.base);
        match answer.status.as_u16() {
            401 => Error::Forbidden(format!("{message}; {}", self.source.advice())),
            403 => Error::Forbidden(message),
            status if is_passing(status) => Error::Unavailable {
                message,
                retry_after: problem.retry_after.or(answer.retry_after).map(seconds),
            },
            _ => Error::Invalid(message),
        }
    }

    /// A proxy answered, or a server of another kind.
    fn stranger(&self, response: &Response) -> Error {
        let status = response.status().as_u16();
        let base = &self.base;
        match status {
            status if is_passing(status) => Error::Unavailable {
                message: format!(
                    "{base}: a proxy in front of the service answered {status}; check that the \
                     service runs"
                ),
                retry_after: retry_after(response).map(seconds),
            },
            300..=399 => Error::Invalid(format!(
                "{base} redirects: write the URL where the service itself is"
            )),
            _ => Error::Invalid(format!(
                "{base} answers ({status}), but is no Dibs service: check the host, port and path"
            )),
        }
    }

    fn silent(&self) -> Error {
        let base = &self.base;
        Error::unavailable(format!(
            "{base} did not answer in time; check the service, its store and the network"
        ))
    }

    /// The connection failed, or broke: the request may have arrived.
    pub(crate) fn broken(&self, error: &reqwest::Error) -> Error {
        let (base, why) = (&self.base, full(error));
        if error.is_builder() {
            return Error::Invalid(why);
        }
        if error.is_connect() {
            return Error::unavailable(format!(
                "{base} can't be reached: {why}; check that the server runs, and the host, port and \
                 firewall"
            ));
        }
        if error.is_timeout() {
            return self.silent();
        }
        Error::unavailable(format!("{base} hung up: {why}; check the service and the network"))
    }
}

impl Answer {
    /// The problem in the body, or an empty one.
    pub(crate) fn problem(&self) -> Problem {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Whether the trouble passes, be it the service's or a proxy's. Cloudflare has 520 to 530.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 413 | 421 | 425 | 429 | 500 | 502..=504 | 507 | 520..=530)
}

fn retry_after(response: &Response) -> Option<f64> {
    let text = response.headers().get("retry-after")?.to_str().ok()?;
    text.parse().ok().filter(|after: &u16| *after > 0).map(f64::from)
}

/// The error and its causes, without the URL.
fn full(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause = std::error::Error::source(error);
    while let Some(each) = cause {
        let told = each.to_string();
        if !text.contains(&told) {
            text += if text.is_empty() { "" } else { ": " };
            text += &told;
        }
        cause = each.source();
    }
    if text.is_empty() { "no answer".into() } else { text }
}

/// TLS 1.2 or newer, with the system's certificate authorities or those of a file.
fn tls(cafile: Option<&Path>) -> Result<rustls::ClientConfig, Error> {
    let wrong = |error: &dyn std::fmt::Display| Error::Invalid(format!("TLS: {error}"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?;
    let Some(file) = cafile else {
        let builder = builder.with_platform_verifier().map_err(|error| wrong(&error))?;
        return Ok(builder.with_no_client_auth());
    };
    let in_file = |error: &dyn std::fmt::Display| {
        Error::Invalid(format!("the certificates in {}: {error}", file.display()))
    };
    let (mut known, mut roots) = (vec![], rustls::RootCertStore::empty());
    for each in CertificateDer::pem_file_iter(file).map_err(|error| in_file(&error))? {
        let certificate = each.map_err(|error| in_file(&error))?;
        roots.add(certificate.clone()).map_err(|error| in_file(&error))?;
        known.push(certificate);
    }
    let authority = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let authority = authority.map_err(|error| in_file(&error))?;
    let verifier = Arc::new(CertificatesInFile { known, authority });
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Trusts the authorities in a file, and a certificate there that is its own authority.
#[derive(Debug)]
struct CertificatesInFile {
    known: Vec<CertificateDer<'static>>,
    authority: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for CertificatesInFile {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = WebPkiServerVerifier::verify_server_cert;
        match verify(&self.authority, end_entity, intermediates, server_name, ocsp, now) {
            // its dates are checked; rustls takes no authority for a server
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_)))
                if self.known.contains(end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            found => found,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authority.supported_verify_schemes()
    }
}
