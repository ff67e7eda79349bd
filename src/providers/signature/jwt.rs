//! JSON Web Tokens signed with HS256, as Evolution sends them: they say who sends, not what.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::Deserialize;

#[derive(Deserialize)]
struct Header {
    alg: String,
}

#[derive(Deserialize)]
struct Claims {
    exp: u64,
}

/// The second at which the token ends, if the key signed it. `None` for what is no HS256 token with an end, or was
/// signed otherwise.
pub(super) fn end_of(token: &str, key: &hmac::Key) -> Option<u64> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    hmac::verify(key, signed.as_bytes(), &signature).ok()?;
    let header: Header = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    (header.alg == "HS256").then_some(claims.exp)
}
