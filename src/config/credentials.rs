//! A route's secrets and public key: whether they suit what its provider signs, and what a key leaves unproven.

use super::Scope;
use super::problem::Fault;
use super::secret::Secret;
use super::source::{Field, Section};
use crate::providers::{ItemRules, Provider, Signature};

/// What a route has to check its provider's signature with.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    pub(super) secrets: Vec<Secret>,
    pub(super) public_key: Option<String>,
    pub(super) webhook_id: Option<String>,
}

/// Each credential, checked at its place.
pub(super) fn read(route: &Section<'_>, provider: Option<&Provider>) -> Credentials {
    let secret = route.field("secret");
    let public_key = route.field("public_key");
    let signature = provider.and_then(|provider| provider.signature.as_ref());
    let given = secret.is_some() || public_key.is_some();
    if given && signature.is_none() && !provider_is_wrong(route, provider) {
        let field = if secret.is_some() { "secret" } else { "public_key" };
        let what = match provider {
            Some(provider) => format!("the provider {} signs nothing that this could check", provider.name),
            None => "nothing checks it: the route has no provider".to_owned(),
        };
        route.fail(field, Fault::new(what, "leave it out, or name a provider that signs"));
    }
    if let Some(signature) = signature
        && !given
    {
        let field = if signature.needs_secret() { "secret" } else { "public_key" };
        let what = match (signature.needs_secret(), signature.takes_certificate()) {
            (true, _) => "no secret",
            (false, true) => {
                "no certificate of the provider (it is never fetched), so its signature is not verified"
            }
            (false, false) => "no public key",
        };
        let risk = "whoever guesses an event's key can make the gateway swallow the real one";
        route.warn(field, format!("{what}: {risk}"));
    }
    let secrets = secret.map(|field| secrets(&field, signature)).unwrap_or_default();
    let public_key = public_key.and_then(|field| {
        let text = field.text_or_file()?;
        if let Some(Err(error)) = signature.map(|signature| signature.check_public_key(&text)) {
            field.fail(error.to_string(), "write the key as the provider shows it, or leave it out");
            return None;
        }
        Some(text)
    });
    let webhook_id = webhook_id(route, provider, given);
    Credentials { secrets, public_key, webhook_id }
}

/// Whether there is no provider because of what is written: an unknown one, or a field that may be `provider`
/// misspelt. That is the problem then; what only follows from it is not said.
pub(super) fn provider_is_wrong(route: &Section<'_>, provider: Option<&Provider>) -> bool {
    provider.is_none() && (route.field("provider").is_some() || route.misspells("provider"))
}

/// The id that the provider gave the webhook, which some signatures cover.
fn webhook_id(route: &Section<'_>, provider: Option<&Provider>, given: bool) -> Option<String> {
    let field = route.field("webhook_id");
    let signature = provider.and_then(|provider| provider.signature.as_ref());
    let signed = signature.is_some_and(Signature::signs_webhook_id);
    match field {
        Some(_) if provider_is_wrong(route, provider) => None,
        Some(field) if !signed => {
            field.fail("nothing uses it: no signature of the route's provider covers it", "leave it out");
            None
        }
        Some(field) => Some(field.expanded()?.text),
        None if signed && given => {
            let mend = "write the id that the provider shows beside the webhook's URL";
            route.fail("webhook_id", Fault::new("is missing, and the provider's signature covers it", mend));
            None
        }
        None => None,
    }
}

/// A list of secrets, or one; each of the form that the signature takes, where there is one.
pub(super) fn secrets(field: &Field<'_>, signature: Option<&Signature>) -> Vec<Secret> {
    let fields = field.one_or_list();
    if fields.is_empty() {
        field.fail("the list is empty", "name a secret, or leave it out");
    }
    let checked = |field: &Field<'_>| {
        let secret = field.secret()?;
        if let Some(Err(error)) =
            signature.map(|signature| signature.check_secret(secret.expose().as_bytes()))
        {
            field.fail(error.to_string(), "write it as the provider shows it, or leave it out");
            return None;
        }
        Some(secret)
    };
    fields.iter().filter_map(checked).collect()
}

/// What a value of the path that isn't signed lets a stranger do.
const ELSEWHERE: &str = "it again to another path, where it is a new event";

/// Warns of what tells events apart and the provider's signature doesn't cover: key parts, and the scope's placeholders.
pub(super) fn warn_of_unsigned_parts(
    route: &Section<'_>,
    provider: Option<&Provider>,
    items: Option<&ItemRules>,
    scope: Option<&Scope>,
) {
    let (Some(provider), Some(items)) = (provider, items) else { return };
    // A route without a secret is warned of as a whole.
    let Some(signature) = &provider.signature else { return };
    let field = if route.field("key").is_some() { "key" } else { "provider" };
    for header in items.headers_open_under(signature) {
        let text = format!(
            "events are named by the header {header}, which {}'s signature does not cover: who replays a signed \
             body under a new {header} is not recognised as a copy, and who sends one under the {header} of an \
             event to come makes the gateway swallow that",
            provider.name
        );
        route.warn(field, text);
    }
    for source in items.key_sources().iter().filter(|source| !signature.covers(source)) {
        let risk = if source.starts_with("path:") { ELSEWHERE } else { "its signature with another event" };
        let text = format!(
            "events are named by {source}, which {}'s signature does not cover: who has seen one delivery can send {risk}",
            provider.name
        );
        route.warn(field, text);
    }
    let placeholders = scope.into_iter().flat_map(Scope::placeholders);
    for name in placeholders.filter(|name| !signature.covers(&format!("path:{name}"))) {
        let text = format!(
            "events are kept apart by path:{name}, which {}'s signature does not cover: who has seen one delivery can \
             send {ELSEWHERE}",
            provider.name
        );
        route.warn("scope", text);
    }
    if signature.signs_checksum() {
        let text = format!(
            "{}'s signature covers a checksum of the body only: who has seen one delivery can write another body \
             that fits",
            provider.name
        );
        route.warn(field, text);
    }
}
