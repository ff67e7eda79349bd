//! Certificates that this process orders itself (ACME, RFC 8555), proving on its own listener that the names are its
//! (TLS-ALPN-01, RFC 8737). What was ordered is kept in files and used from there like any other certificate. So is
//! the answer to a challenge: whichever process shares the folder can give it.

mod cache;
mod challenge;
mod client;
mod keeper;
mod order;
mod ordered;

use std::fmt;
use std::path::PathBuf;

pub(super) use cache::Cache;
pub(super) use challenge::{Challenges, asks_for_proof};
pub(super) use keeper::keep;
pub(super) use ordered::Ordered;

/// Let's Encrypt: what browsers and providers trust, and what is for trying out.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
pub const LETS_ENCRYPT_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// Whose certificates are ordered, where, and where they are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// Host names in lower case, each with a certificate of its own: one that fails holds up no other.
    pub names: Vec<String>,
    /// Mail addresses that the directory may write to.
    pub contacts: Vec<String>,
    /// URL of the authority's directory.
    pub directory: String,
    /// Roots that the directory's own certificate is judged by, in place of the system's.
    pub directory_ca: Option<PathBuf>,
    pub external_account: Option<ExternalAccount>,
    /// Folder for accounts, keys and certificates.
    pub cache: PathBuf,
}

/// What binds our account to one that a person made at the authority (EAB).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    pub id: String,
    /// The MAC key's bytes.
    pub key: Vec<u8>,
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount").field("id", &self.id).finish_non_exhaustive()
    }
}
