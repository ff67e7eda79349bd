//! A receipt as bytes for one column, and back. Compact, versioned, and the same in every database.

use bytes::{Buf as _, BufMut as _, Bytes};
use http::{HeaderName, HeaderValue};

use crate::clock::UnixMillis;
use crate::ledger::claim::Receipt;

/// The first byte of every encoding; another layout takes another number.
const LAYOUT: u8 = 1;
/// Stands for "no body kept" where a body's length stands.
const NO_BODY: u32 = u32::MAX;

/// The receipt as bytes. A header or a body too long for its length field is left out.
pub(super) fn encode(receipt: &Receipt) -> Vec<u8> {
    let body = receipt.body.as_deref().and_then(|body| Some((body, u32::try_from(body.len()).ok()?)));
    let headers: Vec<_> = receipt
        .headers
        .iter()
        .filter_map(|(name, value)| {
            let name = name.as_str().as_bytes();
            let value = value.as_bytes();
            Some((u16::try_from(name.len()).ok()?, name, u32::try_from(value.len()).ok()?, value))
        })
        .take(usize::from(u16::MAX))
        .collect();
    let mut bytes = Vec::with_capacity(24 + headers.len() * 48 + body.map_or(0, |(body, _)| body.len()));
    bytes.put_u8(LAYOUT);
    bytes.put_u16(receipt.status);
    bytes.put_u64(receipt.at.0);
    bytes.put_u16(u16::try_from(headers.len()).unwrap_or(u16::MAX));
    for (name_len, name, value_len, value) in headers {
        bytes.put_u16(name_len);
        bytes.put_slice(name);
        bytes.put_u32(value_len);
        bytes.put_slice(value);
    }
    match body {
        Some((body, len)) if len != NO_BODY => {
            bytes.put_u32(len);
            bytes.put_slice(body);
        }
        Some(_) | None => bytes.put_u32(NO_BODY),
    }
    bytes
}

/// The receipt in these bytes; `None` where they are not an encoding that this version knows.
pub(super) fn decode(bytes: Vec<u8>) -> Option<Receipt> {
    let mut bytes = Bytes::from(bytes);
    if bytes.try_get_u8().ok()? != LAYOUT {
        return None;
    }
    let status = bytes.try_get_u16().ok()?;
    let at = UnixMillis(bytes.try_get_u64().ok()?);
    let count = bytes.try_get_u16().ok()?;
    let mut headers = Vec::with_capacity(usize::from(count.min(64)));
    for _ in 0..count {
        let name_len = usize::from(bytes.try_get_u16().ok()?);
        let name = HeaderName::from_bytes(&take(&mut bytes, name_len)?).ok()?;
        let value_len = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
        let value = HeaderValue::from_maybe_shared(take(&mut bytes, value_len)?).ok()?;
        headers.push((name, value));
    }
    let body = match bytes.try_get_u32().ok()? {
        NO_BODY => None,
        len => Some(take(&mut bytes, usize::try_from(len).ok()?)?),
    };
    Some(Receipt { status, headers, body, at })
}

/// What a done event answers with where nothing better is known: 200 with an empty body.
pub(super) fn empty() -> Receipt {
    Receipt { status: 200, headers: Vec::new(), body: None, at: UnixMillis(0) }
}

fn take(bytes: &mut Bytes, len: usize) -> Option<Bytes> {
    (len <= bytes.len()).then(|| bytes.split_to(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(headers: &[(&str, &[u8])], body: Option<&'static [u8]>) -> Receipt {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_bytes(value).unwrap()))
            .collect();
        Receipt {
            status: 201,
            headers,
            body: body.map(Bytes::from_static),
            at: UnixMillis(1_700_000_000_123),
        }
    }

    #[test]
    fn a_receipt_comes_back_as_it_was() {
        for whole in [
            receipt(&[], None),
            receipt(&[], Some(b"")),
            receipt(&[("content-type", b"application/xml"), ("location", b"/o/5\xe9")], Some(b"<ok/>\0")),
        ] {
            assert_eq!(decode(encode(&whole)), Some(whole));
        }
    }

    #[test]
    fn bytes_that_are_cut_short_or_of_another_layout_are_no_receipt() {
        let bytes = encode(&receipt(&[("location", b"/o/5")], Some(b"body")));
        for len in 0..bytes.len() {
            assert_eq!(decode(bytes[..len].to_vec()), None, "{len}");
        }
        let mut other = bytes;
        other[0] = 9;
        assert_eq!(decode(other), None);
    }
}
