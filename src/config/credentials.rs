//! A route's secrets and public key: whether they suit what its provider signs, and what a key leaves unproven.

use super::problem::Fault;
use super::secret::Secret;
use super::source::{Field, Section};
use crate::providers::{ItemRules, Provider, Signature};

/// The secrets and the public key, each checked at its place.
pub(super) fn read(route: &Section<'_>, provider: Option<&Provider>) -> (Vec<Secret>, Option<String>) {
    let secret = route.field("secret");
    let public_key = route.field("public_key");
    let signature = provider.and_then(|provider| provider.signature.as_ref());
    let given = secret.is_some() || public_key.is_some();
    // Where `provider` is written and unknown, that is the problem; do not add to it.
    let unknown_provider = provider.is_none() && route.field("provider").is_some();
    if given && signature.is_none() && !unknown_provider {
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
        let what = if signature.needs_secret() { "no secret" } else { "no public key" };
        let risk = "whoever guesses an event's key can make the gateway swallow the real one";
        route.warn(field, format!("{what}: {risk}"));
    }
    let secrets = secret.map(|field| secrets(&field, signature)).unwrap_or_default();
    let public_key = public_key.and_then(|field| {
        let text = field.expanded()?.text;
        if let Some(Err(error)) = signature.map(|signature| signature.check_public_key(&text)) {
            field.fail(error.to_string(), "write the key as the provider shows it, or leave it out");
            return None;
        }
        Some(text)
    });
    (secrets, public_key)
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

/// Warns of key parts that come from headers which the provider's signature doesn't cover.
pub(super) fn warn_of_unsigned_parts(
    route: &Section<'_>,
    provider: Option<&Provider>,
    items: Option<&ItemRules>,
) {
    let (Some(provider), Some(items)) = (provider, items) else { return };
    // A route without a secret is warned of as a whole.
    let Some(signature) = &provider.signature else { return };
    let field = if route.field("key").is_some() { "key" } else { "provider" };
    for header in items.key_headers() {
        if !signature.signs_header(header.as_str()) {
            let text = format!(
                "events are named by the header {header}, which {}'s signature does not cover: who replays a signed \
                 body under a new {header} is not recognised as a copy",
                provider.name
            );
            route.warn(field, text);
        }
    }
}
