//! Certificates: read from files, chosen by name, put into use without a restart, and watched. Both listeners'
//! and the client's to the app. Some are ordered by the process itself. Knows no configuration file: it is given paths.

mod acme;
mod app;
mod apps;
mod certificate;
mod listener;
mod pem;
mod sni;
mod watch;

use std::fmt;
use std::path::PathBuf;

pub use acme::{Acme, ExternalAccount, LETS_ENCRYPT, LETS_ENCRYPT_STAGING};
pub use app::{AppTls, Refused, Speaking, is_refusal, is_server_name};
pub use apps::Apps;
pub use certificate::{Certificate, client_names};
pub use listener::{Accepted, Acceptor, ListenerTls, Secure};
pub use pem::roots;
pub use watch::Tls;

/// A chain of certificates, the holder's own first, and its key; both PEM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// What one listener shows, and asks of its callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFiles {
    /// The first is shown to who asks for no name, or for one that nobody has. At least one, unless some are ordered.
    pub pairs: Vec<Pair>,
    /// Those that this process orders.
    pub acme: Option<Acme>,
    pub clients: Option<Clients>,
    pub oldest: Oldest,
}

/// Whose certificates callers may present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    pub ca: PathBuf,
    /// Without one the handshake fails; else only with a wrong one.
    pub required: bool,
}

/// The oldest version of TLS that a listener speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oldest {
    #[default]
    Tls12,
    Tls13,
}

/// How apps behind `https://` are reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AppFiles {
    /// Trusted in place of the system's roots.
    pub ca: Option<PathBuf>,
    /// Shown to an app that asks for a certificate.
    pub client: Option<Pair>,
}

/// Every file that TLS needs; no TLS on a listener without any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub public: Option<ListenerFiles>,
    pub admin: Option<ListenerFiles>,
    /// What all apps share.
    pub app: AppFiles,
    /// Those of single apps.
    pub own: Vec<AppFiles>,
    /// Those of the traces' collector.
    pub collector: Option<AppFiles>,
}

impl ListenerFiles {
    /// Those that metrics tell of.
    fn shown(&self) -> Vec<PathBuf> {
        let chains = self.pairs.iter().map(|pair| pair.chain.clone());
        let chains = chains.chain(self.ordered());
        chains.chain(self.clients.iter().map(|clients| clients.ca.clone())).collect()
    }

    fn paths(&self) -> Vec<PathBuf> {
        let pairs = self.pairs.iter().flat_map(|pair| [pair.chain.clone(), pair.key.clone()]);
        let files = pairs.chain(self.ordered());
        files.chain(self.clients.iter().map(|clients| clients.ca.clone())).collect()
    }

    /// The files of ordered certificates, whether they are there yet or not.
    fn ordered(&self) -> impl Iterator<Item = PathBuf> {
        self.acme.iter().flat_map(|acme| {
            let cache = acme::Cache::of(acme);
            acme.names.iter().map(move |name| cache.pair(name).chain)
        })
    }
}

impl AppFiles {
    /// Those that metrics tell of.
    fn shown(&self) -> Vec<PathBuf> {
        self.client.iter().map(|pair| pair.chain.clone()).chain(self.ca.clone()).collect()
    }

    fn paths(&self) -> Vec<PathBuf> {
        let client = self.client.iter().flat_map(|pair| [pair.chain.clone(), pair.key.clone()]);
        client.chain(self.ca.clone()).collect()
    }
}

impl Files {
    fn paths(&self) -> Vec<PathBuf> {
        let listeners = [&self.public, &self.admin].into_iter().flatten().flat_map(ListenerFiles::paths);
        let others = [&self.app].into_iter().chain(&self.own).chain(&self.collector);
        listeners.chain(others.flat_map(AppFiles::paths)).collect()
    }
}

/// Why a file can't be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}; {mend}", file.display())]
pub struct Trouble {
    pub file: PathBuf,
    pub what: String,
    pub mend: String,
}

impl Trouble {
    fn new(file: impl Into<PathBuf>, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { file: file.into(), what: what.into(), mend: mend.into() }
    }
}

/// What could not be put into use; what was in use before stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Troubles(pub Vec<Trouble>);

/// One a line.
impl fmt::Display for Troubles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, trouble) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{trouble}")?;
        }
        Ok(())
    }
}

impl Troubles {
    fn none_or(troubles: Vec<Trouble>) -> Result<(), Self> {
        if troubles.is_empty() { Ok(()) } else { Err(Self(troubles)) }
    }
}
