//! Address of the service and access to it: its URL and its API key.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use reqwest::Url;

use crate::Error;

const HOW: &str = "set DIBS_API_KEY, or DIBS_API_KEY_FILE to a file that has it";

/// What a URL of the service says.
pub(crate) struct Address {
    /// Scheme, host, port and the path in front of `/v1`, without a slash at its end.
    pub(crate) base: String,
    pub(crate) cafile: Option<PathBuf>,
    pub(crate) key: KeySource,
}

/// Where the API key is. A file is read again if the service rejects the key.
#[derive(Clone)]
pub(crate) enum KeySource {
    Given(String),
    File(PathBuf),
    Environment,
}

impl KeySource {
    /// Find the API key. No error shows any part of it.
    pub(crate) fn find(&self) -> Result<Option<String>, Error> {
        let variable =
            |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        match self {
            KeySource::Given(key) => checked(key, "the URL or the builder").map(Some),
            KeySource::File(path) => read(path).map(Some),
            KeySource::Environment => {
                match (variable("DIBS_API_KEY"), variable("DIBS_API_KEY_FILE")) {
                    (Some(key), _) => checked(key.trim(), "DIBS_API_KEY").map(Some),
                    (None, Some(path)) => read(&PathBuf::from(path)).map(Some),
                    (None, None) => Ok(None),
                }
            }
        }
    }

    /// The next step if the service wants another key.
    pub(crate) fn advice(&self) -> String {
        match self {
            KeySource::Given(_) => "check the API key".into(),
            KeySource::File(path) => format!("check the API key in {}", path.display()),
            KeySource::Environment => HOW.into(),
        }
    }
}

fn read(path: &PathBuf) -> Result<String, Error> {
    let place = format!("the file {}", path.display());
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::Invalid(format!("the API key's file: {place}: {error}")))?;
    checked(text.trim(), &place)
}

fn checked(key: &str, place: &str) -> Result<String, Error> {
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let text = format!("{place} has no API key: a key is one word, such as dibs_\u{2026}");
        return Err(Error::Invalid(text));
    }
    Ok(key.into())
}

impl Address {
    /// Read a URL. No error shows the API key.
    pub(crate) fn parse(text: &str) -> Result<Address, Error> {
        let looks =
            || Error::Invalid("the lock service's URL looks like https://server:8443".into());
        let url = Url::parse(text).map_err(|_| looks())?;
        let host = url.host_str().ok_or_else(looks)?.to_owned();
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let path = url.path().trim_end_matches('/');
        let base = format!("{}://{host}{port}{path}", url.scheme());
        let wrong = |why: &str| Err(Error::Invalid(format!("{base}: {why}")));
        let (mut cafile, mut key_file, mut insecure) = (None, None, false);
        for (name, value) in url.query_pairs() {
            match (name.as_ref(), value.as_ref()) {
                ("cafile", file) => cafile = Some(PathBuf::from(file)),
                ("key_file", file) => key_file = Some(PathBuf::from(file)),
                ("insecure", "true") => insecure = true,
                ("insecure", "false") => {}
                _ => return wrong("its options are cafile=, key_file= and insecure=true"),
            }
        }
        match url.scheme() {
            "https" if insecure => return wrong("insecure=true is for http://; give cafile=FILE"),
            "http" if cafile.is_some() => return wrong("cafile= is for https://"),
            "http" if !(insecure || is_here(&host)) => {
                return wrong(
                    "http:// sends the API key and lease ids in clear: write https://, or, if the \
                     network itself is encrypted, add ?insecure=true",
                );
            }
            "http" | "https" => {}
            _ => return Err(looks()),
        }
        if path.ends_with("/v1") {
            return wrong("leave out /v1: it is added");
        }
        let given = url.password().filter(|word| !word.is_empty()).unwrap_or(url.username());
        let given = percent_decode_str(given).decode_utf8_lossy().into_owned();
        let key = match (given.is_empty(), key_file) {
            (false, Some(_)) => return wrong("the API key is given before the @ and by key_file="),
            (false, None) => KeySource::Given(given),
            (true, Some(file)) => KeySource::File(file),
            (true, None) => KeySource::Environment,
        };
        Ok(Address { base, cafile, key })
    }
}

/// Whether a host is this machine.
fn is_here(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    host == "localhost" || is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(url: &str) -> String {
        Address::parse(url).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_url_names_the_server_and_the_key() {
        let found =
            Address::parse("https://dibs_x%40@locks.example:8443/base/?cafile=ca.pem").unwrap();
        assert_eq!(found.base, "https://locks.example:8443/base");
        assert_eq!(found.key.find().unwrap().unwrap(), "dibs_x@");
        assert_eq!(found.cafile, Some(PathBuf::from("ca.pem")));
    }

    #[test]
    fn clear_text_is_for_this_machine() {
        for url in ["http://127.0.0.1:5327", "http://localhost", "http://[::1]:1"] {
            assert_eq!(why(url), "");
        }
        assert!(why("http://locks.example").contains("in clear"));
        assert_eq!(why("http://locks.internal?insecure=true"), "");
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_key() {
        for url in [
            "redis://dibs_secret@host",
            "https://dibs_secret@host/v1",
            "https://dibs_secret@host?cafle=x",
            "https://dibs_secret@host?insecure=true",
            "https://dibs_secret@host?key_file=x",
            "locks.example",
        ] {
            assert!(!why(url).is_empty() && !why(url).contains("secret"), "{url}");
        }
    }
}
