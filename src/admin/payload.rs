//! What a person sees of a held event's stored request: enough to decide, and no credential. The stored one, which a
//! replay sends, stays as it is.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::flow::body::decoded;
use crate::flow::{Flow, stored_request};
use crate::ledger::Payload;
use crate::providers::Withheld;

/// Longest body that is shown, and undone from a `Content-Encoding` for that, bytes.
const SHOWN_BYTES_MAX: usize = 256 * 1024;
const DECODED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The request of an event of `route` as people may see it.
pub(super) fn shown(payload: &Payload, flow: &Flow, route: &str) -> Value {
    let request = match stored_request(payload) {
        Ok(request) => request,
        Err(why) => return json!({"withheld": why.to_string()}),
    };
    // Of a route that is gone nobody knows what is secret, in the path neither.
    let Some(redactor) = flow.redactor(route) else {
        return json!({"withheld": Withheld::without_route(payload.request.len()).to_string()});
    };
    let target = redactor.url(&request.uri().to_string(), &flow.path_params(&request));
    let headers: Vec<Value> = redactor
        .headers(request.headers())
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    let mut shown = json!({
        "request": format!("{} {target}", request.method()),
        "headers": headers,
        "body_bytes": request.body().len(),
    });
    let body = decoded(request.headers(), request.body(), DECODED_BYTES_MAX)
        .unwrap_or_else(|_| request.body().clone());
    let (name, value) = match redactor.body(request.headers(), &body) {
        Ok(text) => body_field(&text),
        Err(withheld) => ("withheld", Value::from(withheld.to_string())),
    };
    shown[name] = value;
    shown
}

/// Text where it is text, base64 where not, and where it is too long nothing of it: cut JSON misleads.
fn body_field(body: &[u8]) -> (&'static str, Value) {
    if body.len() > SHOWN_BYTES_MAX {
        return ("withheld", Value::from(format!("longer than {SHOWN_BYTES_MAX} bytes")));
    }
    match str::from_utf8(body) {
        Ok(text) => ("body", Value::from(text)),
        Err(_) => ("body_base64", Value::from(BASE64_STANDARD.encode(body))),
    }
}
