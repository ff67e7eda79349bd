//! Which certificate a caller is shown: by the name that it asks for, and by what it can verify.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::acme::Ordered;
use super::certificate::Certificate;

/// The certificates of one listener, by name.
#[derive(Debug)]
pub(super) struct Sni {
    certificates: Vec<Arc<Certificate>>,
    /// Names as they are, and `*.` names by what follows the star: where in the list, in its order.
    exact: HashMap<String, Vec<usize>>,
    wildcard: HashMap<String, Vec<usize>>,
    /// Names whose certificate is ordered and not there yet: another's would only be mistaken for a mistake.
    awaited: HashSet<String>,
}

impl Sni {
    /// What was ordered for a name is shown before what files hold for it; the first of all, which who asks for an unknown
    /// name is shown, is a file's, where there is one.
    pub(super) fn new(mut certificates: Vec<Arc<Certificate>>, ordered: &[Ordered]) -> Self {
        let (mut exact, mut wildcard) = (HashMap::new(), HashMap::new());
        for (index, certificate) in certificates.iter().enumerate() {
            for name in &certificate.names {
                let (names, name) = match name.strip_prefix("*.") {
                    Some(rest) => (&mut wildcard, rest),
                    None => (&mut exact, name.as_str()),
                };
                names.entry(name.to_owned()).or_insert_with(Vec::new).push(index);
            }
        }
        let mut awaited = HashSet::new();
        for ordered in ordered {
            if let Some(certificate) = &ordered.certificate {
                exact.entry(ordered.name.clone()).or_insert_with(Vec::new).insert(0, certificates.len());
                certificates.push(Arc::clone(certificate));
            } else {
                awaited.insert(ordered.name.clone());
            }
        }
        Self { certificates, exact, wildcard, awaited }
    }

    /// An exact name stands before a wildcard, which stands for one label; else the first of all. Of several for
    /// one name (ECDSA beside RSA), the first whose key the caller can verify.
    fn choose(&self, name: Option<&str>, fits: impl Fn(&Certificate) -> bool) -> Option<&Arc<Certificate>> {
        let name = name.map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let exact = name.as_deref().and_then(|name| self.exact.get(name));
        let named = exact.or_else(|| {
            let (label, parent) = name.as_deref()?.split_once('.')?;
            self.wildcard.get(parent).filter(|_| !label.is_empty())
        });
        let Some(named) = named else {
            let awaited = name.is_some_and(|name| self.awaited.contains(&name));
            return self.certificates.first().filter(|_| !awaited);
        };
        let mut candidates = named.iter().filter_map(|index| self.certificates.get(*index));
        candidates.clone().find(|certificate| fits(certificate)).or_else(|| candidates.next())
    }
}

impl ResolvesServerCert for Sni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes: &[SignatureScheme] = hello.signature_schemes();
        let fits = |certificate: &Certificate| certificate.key.key.choose_scheme(schemes).is_some();
        self.choose(hello.server_name(), fits).map(|certificate| Arc::clone(&certificate.key))
    }
}
