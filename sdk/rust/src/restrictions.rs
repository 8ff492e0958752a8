//! Restrictions: in which regions, and at which providers, a directory may live.

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::Client;
use crate::names::{decoded, in_path};
use crate::transport::Request;
use crate::{Error, error};

/// Regions and providers that are allowed or denied. An empty list of allowed values allows everything.
///
/// Regions are parts of the world (`XE`, `eu`), countries (`DE`), or regions of placements. Providers are
/// such as `AWS` and `GCP`.
///
/// ```
/// let rule = dibs::Rule { regions_allowed: vec!["XE".into()], ..Default::default() };
/// assert!(rule.providers_denied.is_empty());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// Regions that are allowed.
    pub regions_allowed: Vec<String>,
    /// Regions that are denied.
    pub regions_denied: Vec<String>,
    /// Providers that are allowed.
    pub providers_allowed: Vec<String>,
    /// Providers that are denied.
    pub providers_denied: Vec<String>,
}

/// The restriction of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restriction {
    /// The directory, without the slash at its end.
    pub directory: Vec<u8>,
    /// What is allowed.
    pub rule: Rule,
    /// Whether nothing is left at a placement that is not allowed.
    pub is_enforced: bool,
    /// The placement of the directory.
    pub placement: String,
}

#[derive(Deserialize)]
struct OnWire {
    directory: String,
    details: Rule,
    state: String,
    placement: String,
}

impl OnWire {
    fn read(self) -> Result<Restriction, Error> {
        Ok(Restriction {
            directory: decoded(&self.directory).map_err(Error::unavailable)?,
            rule: self.details,
            is_enforced: self.state == "Enforced",
            placement: self.placement,
        })
    }
}

/// The path of a directory, which is given with or without the slash at its end.
fn path(directory: impl AsRef<[u8]>) -> Result<String, Error> {
    let bytes = directory.as_ref();
    match bytes.strip_suffix(b"/").unwrap_or(bytes) {
        [] => Err(error::Error::Invalid("a restriction is for a directory, such as jobs/".into())),
        bare => Ok(format!("/v1/restrict/locks/{}/", in_path(bare))),
    }
}

/// Restrictions of directories. Changes need an administrator's key.
impl Client {
    /// Restrict a directory to regions and providers. It moves to another store if it must.
    ///
    /// ```no_run
    /// # async fn example(client: dibs::Client) -> Result<(), dibs::Error> {
    /// let rule = dibs::Rule { regions_allowed: vec!["XE".into()], ..Default::default() };
    /// client.restrict("jobs/", &rule).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn restrict(&self, directory: impl AsRef<[u8]>, rule: &Rule) -> Result<(), Error> {
        self.call(Method::PUT, path(directory)?, Some(json!(rule))).await.map(|_: Value| ())
    }

    /// Delete the restriction of a directory. What lives somewhere stays there.
    pub async fn unrestrict(&self, directory: impl AsRef<[u8]>) -> Result<(), Error> {
        self.call(Method::DELETE, path(directory)?, None).await.map(|_: Value| ())
    }

    /// The restriction of a directory; `None` if it has none, or you may not read it.
    pub async fn restriction(
        &self,
        directory: impl AsRef<[u8]>,
    ) -> Result<Option<Restriction>, Error> {
        let path = path(directory)?;
        let found = self.on_runtime(move |inner| async move {
            let transport = &inner.transport;
            let answer = transport.send(Request::new(Method::GET, &path, transport.call_timeout));
            let answer = answer.await?;
            match answer.status.as_u16() {
                200 => transport.parse_answer::<OnWire>(&answer).map(Some),
                404 => Ok(None),
                _ => Err(transport.explain(&answer)),
            }
        });
        found.await?.map(OnWire::read).transpose()
    }

    /// All restrictions that your key may read.
    pub async fn restrictions(&self) -> Result<Vec<Restriction>, Error> {
        #[derive(Deserialize)]
        struct Page {
            restrictions: Vec<OnWire>,
            next_api: Option<String>,
            next_key: Option<String>,
        }
        let (mut found, mut query) = (vec![], String::new());
        loop {
            let path = format!("/v1/restrict{query}");
            let page: Page = self.call(Method::GET, path, None).await?;
            for each in page.restrictions {
                found.push(each.read()?);
            }
            let (Some(api), Some(key)) = (page.next_api, page.next_key) else { return Ok(found) };
            query = format!("?from={key}&from_api={api}");
        }
    }
}
