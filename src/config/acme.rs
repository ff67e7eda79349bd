//! `[public_tls.acme]`: certificates that the gateway orders itself. Off without `names`. Nothing is ordered and nobody
//! is asked here; what can be known beforehand is.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::fields;
use super::problem::Fault;
use super::source::{Field, Section};
use super::tls::{ca, path};
use crate::tls::{Acme, ExternalAccount, LETS_ENCRYPT, LETS_ENCRYPT_STAGING};

/// Most names; authorities that serve everybody allow some dozens a week.
const NAMES_MAX: usize = 100;
/// Longest host name, and longest label of one (RFC 1035).
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

const NAMES: &str = "write names = [\"hooks.example.com\"]";

pub(super) fn read(public_tls: &Section<'_>) -> Option<Acme> {
    let section = public_tls.section("acme", fields::ACME);
    let Some(names) = section.field("names") else {
        if fields::ACME.iter().any(|field| section.field(field).is_some()) {
            let mend = format!("{NAMES}, or leave the section out");
            section.fail("names", Fault::new("is missing: nothing would be ordered", mend));
        }
        return None;
    };
    let directory = section.parsed("directory", directory);
    let directory = directory.unwrap_or_else(|| LETS_ENCRYPT.to_owned());
    let names = host_names(&names, &directory);
    let contacts = section.field("contact").map(|field| field.one_or_list()).unwrap_or_default();
    let contacts = contacts.iter().filter_map(|field| field.parsed(contact)).collect();
    agreed(&section, &directory);
    let cache = match section.field("cache") {
        Some(field) => cache(&field),
        None => {
            let mend =
                "name a folder that outlives the gateway and is its user's alone: \"/var/lib/umavez/acme\"";
            section.fail("cache", Fault::new("is missing", mend));
            None
        }
    };
    Some(Acme {
        names,
        contacts,
        directory,
        directory_ca: section.field("directory_ca").and_then(|field| ca(&field)),
        external_account: section.field("external_account").and_then(|field| external_account(&field)),
        cache: cache?,
    })
}

fn host_names(field: &Field<'_>, directory: &str) -> Vec<String> {
    let listed = field.one_or_list();
    if listed.is_empty() || listed.len() > NAMES_MAX {
        field.fail(format!("holds {} names", listed.len()), format!("write 1 to {NAMES_MAX}"));
    }
    let mut names: Vec<String> = Vec::new();
    for element in listed {
        let Some(name) = element.parsed(host_name) else { continue };
        if names.contains(&name) {
            element.fail(format!("{name} is named twice"), "name it once");
        } else if !name.contains('.') && is_lets_encrypt(directory) {
            let mend = "write the whole name, or name the directory of an authority of your own";
            element.fail(format!("Let's Encrypt signs no name without a dot, as {name} is"), mend);
        } else {
            names.push(name);
        }
    }
    names
}

fn host_name(text: &str) -> Result<String, Fault> {
    let name = text.trim_end_matches('.').to_ascii_lowercase();
    if name.contains('*') {
        let mend =
            "name each host, or have the wildcard ordered by a client that can do DNS-01 and name its files";
        return Err(Fault::new("a wildcard can't be proved by a listener (TLS-ALPN-01)", mend));
    }
    if name.parse::<std::net::IpAddr>().is_ok() {
        return Err(Fault::new(format!("{name} is an address"), NAMES));
    }
    let fits = |label: &str| {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let ends = label.starts_with('-') || label.ends_with('-');
        (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(known) && !ends
    };
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(fits) {
        let mend = if name.is_ascii() { NAMES } else { "write it as DNS does: xn--…" };
        return Err(Fault::new(format!("{text:?} is no host name"), mend));
    }
    Ok(name)
}

/// Let's Encrypt, its twin for trying out, or any other by its URL.
fn directory(text: &str) -> Result<String, Fault> {
    match text {
        "letsencrypt" => Ok(LETS_ENCRYPT.to_owned()),
        "letsencrypt-staging" => Ok(LETS_ENCRYPT_STAGING.to_owned()),
        _ => {
            let url = text.parse::<http::Uri>().ok();
            let fits = url.is_some_and(|url| url.scheme_str() == Some("https") && url.host().is_some());
            let mend = "write \"letsencrypt\", \"letsencrypt-staging\", or the https:// URL of a directory";
            fits.then(|| text.to_owned()).ok_or_else(|| Fault::new(format!("{text:?} is no directory"), mend))
        }
    }
}

fn is_lets_encrypt(directory: &str) -> bool {
    [LETS_ENCRYPT, LETS_ENCRYPT_STAGING].contains(&directory)
}

fn contact(text: &str) -> Result<String, Fault> {
    let address = text.strip_prefix("mailto:").unwrap_or(text);
    let odd =
        |character: char| character.is_whitespace() || character.is_control() || ",?<>".contains(character);
    let fits = address
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && host_name(host).is_ok() && !address.contains(odd));
    let fault = || Fault::new(format!("{text:?} is no mail address"), "write it as \"you@example.com\"");
    fits.then(|| format!("mailto:{address}")).ok_or_else(fault)
}

/// Nobody agrees for the operator.
fn agreed(section: &Section<'_>, directory: &str) {
    let agreed = section.field("terms_agreed");
    if agreed.as_ref().and_then(|field| field.value.as_bool()) == Some(true) {
        return;
    }
    let terms = if is_lets_encrypt(directory) { " (https://letsencrypt.org/repository/)" } else { "" };
    let mend = format!("read the directory's terms of service{terms}, and write terms_agreed = true");
    let what = if agreed.is_some() { "is not true" } else { "is missing" };
    section.fail("terms_agreed", Fault::new(format!("{what}: no account is made without it"), mend));
}

/// `{ id = "…", key = "${…}" }`.
fn external_account(field: &Field<'_>) -> Option<ExternalAccount> {
    const MEND: &str = "write { id = \"…\", key = \"${ACME_EAB_KEY}\" }, both as the authority shows them";
    let Some(table) = field.value.as_table() else {
        field.fail("is no external account", MEND);
        return None;
    };
    let (name, span) = (field.name.clone(), field.span.clone());
    let section = Section::open(field.source, name, Some(table), span, fields::EXTERNAL_ACCOUNT);
    let (id, key) = (section.field("id"), section.field("key"));
    for (there, name) in [(id.is_some(), "id"), (key.is_some(), "key")] {
        if !there {
            section.fail(name, Fault::new("is missing", MEND));
        }
    }
    let (id, key) = (id?, key?);
    let text = key.secret()?;
    let read = BASE64_URL_SAFE_NO_PAD.decode(text.expose().trim().trim_end_matches('='));
    let Some(bytes) = read.ok().filter(|bytes| !bytes.is_empty()) else {
        key.fail("is no base64url", "write the MAC key as the authority shows it");
        return None;
    };
    Some(ExternalAccount { id: id.expanded()?.text, key: bytes })
}

/// A folder that is there or can be made. Whether it can is tried where it will be: rights alone don't tell.
fn cache(field: &Field<'_>) -> Option<PathBuf> {
    let path = path(field)?;
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    if !there.is_dir() {
        field.fail(format!("{} is no folder", there.display()), "name a folder");
        return None;
    }
    if let Err(error) = tempfile::tempfile_in(there) {
        let mend = "let umavez's user write there, or name another folder";
        field.fail(format!("{} can't be written: {error}", there.display()), mend);
        return None;
    }
    let mode = path.metadata().map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o022 != 0 {
        let text = format!("{}: others may write there, and so put certificates into use", path.display());
        field.source.warn(field.span.start, &field.name, text);
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_those_of_dns() {
        for (text, name) in [
            ("Hooks.Example.COM.", "hooks.example.com"),
            ("xn--mnchen-3ya.example", "xn--mnchen-3ya.example"),
            ("localhost", "localhost"),
            ("1.a", "1.a"),
        ] {
            assert_eq!(host_name(text).ok().as_deref(), Some(name));
        }
        let long = format!("{}.example", "a".repeat(64));
        for text in [
            "",
            ".",
            "a..b",
            "-a.example",
            "a_b.example",
            "münchen.example",
            "*.a.example",
            "10.0.0.1",
            &long,
        ] {
            assert!(host_name(text).is_err(), "{text}");
        }
        assert!(host_name(&["a234567890"; 24].join(".")).is_err(), "263 bytes");
    }

    #[test]
    fn a_contact_is_a_mail_address() {
        assert_eq!(contact("ops@example.com").ok().as_deref(), Some("mailto:ops@example.com"));
        assert_eq!(contact("mailto:ops@example.com").ok().as_deref(), Some("mailto:ops@example.com"));
        for text in ["", "ops", "@example.com", "a b@example.com", "ops@", "a@b@c", "a@b?cc=c"] {
            assert!(contact(text).is_err(), "{text}");
        }
    }
}
