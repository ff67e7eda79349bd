//! A route's `handshake` and `verify_token`: whether the gateway answers what the provider sends to check the URL,
//! and whether it has what that takes.

use super::HandshakeBy;
use super::credentials::{provider_is_wrong, secrets};
use super::problem::Fault;
use super::route::choice;
use super::secret::Secret;
use super::source::Section;
use crate::providers::{Needs, Provider};

const CHOICES: [(&str, HandshakeBy); 2] = [("forward", HandshakeBy::App), ("answer", HandshakeBy::Gateway)];

/// Who answers, and the tokens that a handshake may repeat.
pub(super) fn read(route: &Section<'_>, provider: Option<&Provider>) -> (HandshakeBy, Vec<Secret>) {
    let by = choice(route, "handshake", &CHOICES).unwrap_or_default();
    let token = route.field("verify_token");
    let tokens = token.as_ref().map(|field| secrets(field, None)).unwrap_or_default();
    if provider_is_wrong(route, provider) {
        return (by, tokens);
    }
    let needs: Vec<Needs> = provider
        .map(|provider| provider.handshakes.iter().filter_map(|handshake| handshake.needs()).collect())
        .unwrap_or_default();
    if by == HandshakeBy::Gateway {
        if let Some((field, fault)) = lack(route, &needs) {
            route.fail(field, fault);
        }
    } else if token.is_some() {
        let mend = "write handshake = \"answer\", or leave it out";
        route.fail("verify_token", Fault::new("is not used: the app answers handshakes", mend));
    }
    if by == HandshakeBy::Gateway && token.is_some() && !needs.contains(&Needs::VerifyToken) {
        let fault = Fault::new("is not used: the provider's handshake repeats no token", "leave it out");
        route.fail("verify_token", fault);
    }
    (by, tokens)
}

/// What the gateway would need to answer and doesn't have.
fn lack(route: &Section<'_>, needs: &[Needs]) -> Option<(&'static str, Fault)> {
    if needs.is_empty() {
        let what = "the provider sends no handshake that the gateway can answer";
        return Some(("handshake", Fault::new(what, "leave it out: handshakes reach the app")));
    }
    if needs.contains(&Needs::VerifyToken) && route.field("verify_token").is_none() {
        let mend = "write the token that you chose at the provider: verify_token = \"${VERIFY_TOKEN}\"";
        return Some(("verify_token", Fault::new("is missing: the gateway answers handshakes", mend)));
    }
    let signed = route.field("secret").is_some() || route.field("public_key").is_some();
    if needs.contains(&Needs::Signature) && !signed {
        let mend = "write the route's secret or public_key, or leave handshake out";
        return Some(("handshake", Fault::new("only a signed handshake can be answered", mend)));
    }
    None
}
