//! Reads a request's body up to its bound, in time, and undoes its `Content-Encoding` for reading only: what goes
//! to the app is always the bytes that came.

use std::io::Read;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::upstream::{Arriving, Cause};

/// More encodings on top of each other than this are not undone.
const ENCODINGS_MAX: usize = 4;

/// What an encoding may add to a body that it doesn't make shorter.
const ENVELOPE_BYTES: usize = 1024;

/// Window of zstd that a body may ask us to hold, as a power of two: 8 MiB, what its own tools stay under.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Why there is no body to work with.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Answer 413.
    #[error("the body is longer than {0} bytes")]
    TooLarge(usize),
    /// Answer 408.
    #[error("the body did not arrive within {0:?}")]
    Timeout(Duration),
    /// The sender is gone, or broke the framing: whoever is still there is answered 400.
    #[error("the body broke off")]
    Broken(#[source] Cause),
    /// An encoding we don't know, or bytes that aren't what they say: nothing can be read from it, and it passes.
    #[error("the body's encoding is not understood")]
    NotUnderstood,
}

/// A body that has arrived.
#[derive(Debug)]
pub enum Came {
    Whole(Bytes),
    /// It is longer than the limit: what was read, and the rest.
    Longer(Bytes, Incoming),
}

/// The whole body, if it is at most `limit` bytes and arrives within `patience`. Where a length past the limit is
/// declared, nothing is read, so that no `100 Continue` invites it.
pub async fn read(mut body: Arriving, limit: usize, patience: Duration) -> Result<Came, BodyError> {
    if body.is_end_stream() {
        return Ok(Came::Whole(Bytes::new()));
    }
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Ok(Came::Longer(Bytes::new(), body.into_inner()));
    }
    match tokio::time::timeout(patience, read_all(&mut body, limit)).await {
        Ok(Ok(bytes)) if bytes.len() > limit => Ok(Came::Longer(bytes, body.into_inner())),
        Ok(result) => result.map(Came::Whole),
        Err(_elapsed) => Err(BodyError::Timeout(patience)),
    }
}

/// The whole body; or, where it is longer than `limit`, as much as it took to see that.
async fn read_all(body: &mut Arriving, limit: usize) -> Result<Bytes, BodyError> {
    let declared = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        let length = first.len() + whole.len() + piece.len();
        if whole.is_empty() && first.is_empty() {
            first = piece; // most bodies come in one piece: no copy
        } else {
            if whole.is_empty() {
                // Not more than what has come by a power of two: a declared length is only a promise.
                whole.reserve(declared.unwrap_or(length).min(length.saturating_mul(8)));
                whole.extend_from_slice(&std::mem::take(&mut first));
            }
            whole.extend_from_slice(&piece);
        }
        if length > limit {
            break;
        }
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

/// The body to read items from: `raw` itself where nothing encodes it, at most `limit` bytes otherwise.
pub fn decoded(headers: &HeaderMap, raw: &Bytes, limit: usize) -> Result<Bytes, BodyError> {
    let encodings = encodings(headers)?;
    let mut bytes = raw.clone();
    for (layers_below, encoding) in encodings.into_iter().enumerate().rev() {
        if bytes.is_empty() {
            break; // some senders label an empty body
        }
        let slack = if layers_below > 0 { ENVELOPE_BYTES } else { 0 };
        bytes = encoding.undo(&bytes, limit.saturating_add(slack))?;
    }
    Ok(bytes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// In the order they were applied.
fn encodings(headers: &HeaderMap) -> Result<Vec<Encoding>, BodyError> {
    let mut encodings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        for name in value.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            let encoding = match name.to_ascii_lowercase().as_slice() {
                b"" | b"identity" => continue,
                b"gzip" | b"x-gzip" => Encoding::Gzip,
                b"deflate" => Encoding::Deflate,
                b"br" => Encoding::Brotli,
                b"zstd" => Encoding::Zstd,
                _ => return Err(BodyError::NotUnderstood),
            };
            if encodings.len() == ENCODINGS_MAX {
                return Err(BodyError::NotUnderstood);
            }
            encodings.push(encoding);
        }
    }
    Ok(encodings)
}

impl Encoding {
    fn undo(self, bytes: &[u8], limit: usize) -> Result<Bytes, BodyError> {
        match self {
            Self::Gzip => bounded(flate2::read::MultiGzDecoder::new(bytes), limit),
            Self::Deflate if is_zlib(bytes) => bounded(flate2::read::ZlibDecoder::new(bytes), limit),
            Self::Deflate => bounded(flate2::read::DeflateDecoder::new(bytes), limit),
            Self::Brotli => bounded(brotli::Decompressor::new(bytes, 16 * 1024), limit),
            Self::Zstd => {
                let mut decoder =
                    zstd::stream::read::Decoder::with_buffer(bytes).map_err(|_| BodyError::NotUnderstood)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(|_| BodyError::NotUnderstood)?;
                bounded(decoder, limit)
            }
        }
    }
}

/// `deflate` means zlib by the book and raw deflate by custom; zlib's two bytes tell which.
fn is_zlib(bytes: &[u8]) -> bool {
    match bytes {
        [first, second, ..] => {
            first & 0x0f == 8 && (u16::from(*first) << 8 | u16::from(*second)).is_multiple_of(31)
        }
        _ => false,
    }
}

fn bounded(decoder: impl Read, limit: usize) -> Result<Bytes, BodyError> {
    let mut out = Vec::new();
    let one_more = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(one_more).read_to_end(&mut out).map_err(|_| BodyError::NotUnderstood)?;
    if out.len() > limit {
        return Err(BodyError::TooLarge(limit));
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TEXT: &[u8] = br#"{"id":"g1"}"#;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn raw_deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn brotli(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        {
            let mut encoder = brotli::CompressorWriter::new(&mut out, 4096, 5, 20);
            encoder.write_all(bytes).unwrap();
        }
        out
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(bytes, 3).unwrap()
    }

    fn decode(encoding: &str, raw: Vec<u8>, limit: usize) -> Result<Bytes, BodyError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, encoding.parse().unwrap());
        decoded(&headers, &raw.into(), limit)
    }

    #[test]
    fn every_encoding_is_undone() {
        let table = [
            ("gzip", gzip(TEXT)),
            ("X-Gzip", gzip(TEXT)),
            ("gzip", [gzip(&TEXT[..4]), gzip(&TEXT[4..])].concat()),
            ("deflate", zlib(TEXT)),
            ("deflate", raw_deflate(TEXT)),
            ("br", brotli(TEXT)),
            ("zstd", zstd(TEXT)),
            ("deflate, gzip", gzip(&zlib(TEXT))),
            ("identity", TEXT.to_vec()),
        ];
        for (encoding, raw) in table {
            let seen = decode(encoding, raw, TEXT.len());
            assert_eq!(seen.unwrap_or_else(|error| panic!("{encoding}: {error}")), TEXT, "{encoding}");
        }
        assert_eq!(decode("gzip", Vec::new(), 10).unwrap(), "");
    }

    #[test]
    fn a_bomb_is_too_large_and_is_not_unpacked() {
        let zeros = vec![0; 4 << 20];
        for (encoding, raw) in [
            ("gzip", gzip(&zeros)),
            ("deflate", zlib(&zeros)),
            ("br", brotli(&zeros)),
            ("zstd", zstd(&zeros)),
        ] {
            assert!(matches!(decode(encoding, raw, 1 << 20), Err(BodyError::TooLarge(_))), "{encoding}");
        }
        let twice = gzip(&gzip(&zeros));
        assert!(matches!(decode("gzip, gzip", twice, 1 << 20), Err(BodyError::TooLarge(_))));
    }

    #[test]
    fn what_cannot_be_undone_is_not_understood() {
        let broken = gzip(TEXT)[..20].to_vec();
        let table = [
            ("gzip", broken),
            ("gzip", TEXT.to_vec()),
            ("zstd", TEXT.to_vec()),
            ("br", vec![0xff; 9]),
            ("compress", TEXT.to_vec()),
            ("gzip, gzip, gzip, gzip, gzip", TEXT.to_vec()),
        ];
        for (encoding, raw) in table {
            assert!(matches!(decode(encoding, raw, 1000), Err(BodyError::NotUnderstood)), "{encoding}");
        }
    }
}
