//! Undoes a body's `Content-Encoding`, for reading only. What that may cost is bounded by what came, not by what the
//! sender says: layers, members, how far one layer may unfold into another, bytes and time; and what may take longer
//! than a moment is done beside the serving threads, a few at a time.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use tokio::sync::Semaphore;

use super::body::BodyError;
use crate::clock::monotonic;

/// More encodings on top of each other than this no sender makes: they are refused.
const LAYERS_MAX: usize = 8;

/// Members of one gzip body: each costs a decoder, also where nothing is in it.
const GZIP_MEMBERS_MAX: usize = 1000;

/// How many times its own length a body may unfold into any layer but the last: what is encoded hardly gets shorter once
/// more.
const UNFOLDS_MAX: usize = 16;

/// What an encoding may add to a body that it doesn't make shorter.
const ENVELOPE_BYTES: usize = 4 * 1024;

/// Window of zstd that a body may ask us to hold, as a power of two: 8 MiB, what its own tools stay under.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// How long undoing one body may take: a body of tens of MiB takes a tenth of that.
const WORK_MAX: Duration = Duration::from_secs(5);

/// A body of one layer that came in no more, and unfolds to no more, is undone where it stands.
const INLINE_CAME_BYTES_MAX: usize = 16 * 1024;
const INLINE_BYTES_MAX: usize = 256 * 1024;

/// Bodies that are undone beside the serving threads at once, in this process.
const ASIDE_MAX: usize = 4;
static ASIDE: Semaphore = Semaphore::const_new(ASIDE_MAX);

/// How much is taken in between two looks at the time.
const PIECE_BYTES: usize = 16 * 1024;

/// Whether the body has to be undone before it can be read.
pub(super) fn is_encoded(headers: &HeaderMap, raw: &Bytes) -> bool {
    !raw.is_empty()
        && match layers(headers) {
            Ok(layers) => !layers.is_empty(),
            Err(error) => matches!(error, BodyError::TooManyLayers(_)),
        }
}

/// The body to read items from: `raw` itself where nothing encodes it, at most `limit` bytes otherwise. It may take a
/// while: for who serves nobody meanwhile.
///
/// # Errors
/// [`BodyError::TooLarge`], [`BodyError::TooMuchWork`], [`BodyError::TooManyLayers`], or [`BodyError::NotUnderstood`].
pub fn decoded(headers: &HeaderMap, raw: &Bytes, limit: usize) -> Result<Bytes, BodyError> {
    undo(&layers(headers)?, raw, limit, monotonic() + WORK_MAX)
}

/// As [`decoded`], without holding this thread for long; `patience` is for its turn.
pub(super) async fn decoded_aside(
    headers: &HeaderMap,
    raw: &Bytes,
    limit: usize,
    patience: Duration,
) -> Result<Bytes, BodyError> {
    let layers = layers(headers)?;
    let deadline = monotonic() + WORK_MAX;
    if layers.is_empty() {
        return Ok(raw.clone());
    }
    if layers.len() == 1 && raw.len() <= INLINE_CAME_BYTES_MAX {
        match undo(&layers, raw, limit.min(INLINE_BYTES_MAX), deadline) {
            Err(BodyError::TooLarge(reached)) if reached < limit => {}
            result => return result,
        }
    }
    let turn = tokio::time::timeout(patience, ASIDE.acquire()).await;
    let turn = turn.map_err(|_elapsed| BodyError::TooMuchWork)?.expect("never closed");
    let raw = raw.clone();
    let work = tokio::task::spawn_blocking(move || {
        let result = undo(&layers, &raw, limit, monotonic() + WORK_MAX);
        drop(turn);
        result
    });
    work.await.unwrap_or(Err(BodyError::NotUnderstood))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// In the order they were applied.
fn layers(headers: &HeaderMap) -> Result<Vec<Encoding>, BodyError> {
    let mut layers = Vec::new();
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
            layers.push(encoding);
        }
    }
    if layers.len() > LAYERS_MAX { Err(BodyError::TooManyLayers(LAYERS_MAX)) } else { Ok(layers) }
}

fn undo(layers: &[Encoding], raw: &Bytes, limit: usize, deadline: Instant) -> Result<Bytes, BodyError> {
    let mut bytes = raw.clone();
    let most = raw.len().saturating_mul(UNFOLDS_MAX).min(limit).saturating_add(ENVELOPE_BYTES);
    for (below, encoding) in layers.iter().enumerate().rev() {
        if bytes.is_empty() {
            break; // some senders label an empty body
        }
        bytes = if below == 0 {
            encoding.undo(&bytes, limit, deadline)?
        } else {
            let inner = encoding.undo(&bytes, most, deadline);
            // It is no layer that any sender makes, and what is in it is no shorter.
            if matches!(inner, Err(BodyError::TooLarge(_))) {
                return Err(BodyError::TooLarge(limit));
            }
            inner?
        };
    }
    Ok(bytes)
}

impl Encoding {
    fn undo(self, bytes: &[u8], limit: usize, deadline: Instant) -> Result<Bytes, BodyError> {
        let mut source = BufReader::with_capacity(PIECE_BYTES, Timed { bytes, deadline });
        let mut out = Vec::new();
        let read = match self {
            Self::Gzip => return members(&mut source, limit, deadline),
            Self::Deflate if is_zlib(bytes) => {
                bounded(flate2::bufread::ZlibDecoder::new(source), limit, &mut out)
            }
            Self::Deflate => bounded(flate2::bufread::DeflateDecoder::new(source), limit, &mut out),
            Self::Brotli => bounded(brotli::Decompressor::new(source, PIECE_BYTES), limit, &mut out),
            Self::Zstd => zstd::stream::read::Decoder::with_buffer(source).and_then(|mut decoder| {
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                bounded(decoder, limit, &mut out)
            }),
        };
        whole(read, out, limit, deadline)
    }
}

/// Every member of a gzip body, one after the other.
fn members(source: &mut impl BufRead, limit: usize, deadline: Instant) -> Result<Bytes, BodyError> {
    let mut out = Vec::new();
    for _ in 0..GZIP_MEMBERS_MAX {
        let read = bounded(flate2::bufread::GzDecoder::new(&mut *source), limit, &mut out);
        let at_end = read.and_then(|()| Ok(out.len() > limit || source.fill_buf()?.is_empty()));
        match at_end {
            Ok(false) => {}
            ended => return whole(ended.map(drop), out, limit, deadline),
        }
    }
    Err(BodyError::NotUnderstood)
}

/// Adds what comes to `out`, up to one byte more than `limit` in all.
fn bounded(decoder: impl Read, limit: usize, out: &mut Vec<u8>) -> std::io::Result<()> {
    let left = limit.saturating_add(1).saturating_sub(out.len());
    decoder.take(u64::try_from(left).unwrap_or(u64::MAX)).read_to_end(out).map(drop)
}

fn whole(
    read: std::io::Result<()>,
    out: Vec<u8>,
    limit: usize,
    deadline: Instant,
) -> Result<Bytes, BodyError> {
    match read {
        Ok(()) if out.len() > limit => Err(BodyError::TooLarge(limit)),
        Ok(()) => Ok(out.into()),
        Err(_) if monotonic() >= deadline => Err(BodyError::TooMuchWork),
        Err(_) => Err(BodyError::NotUnderstood),
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

/// Bytes that nobody gets any more of after the deadline: a decoder may take in much and give out nothing.
struct Timed<'a> {
    bytes: &'a [u8],
    deadline: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if monotonic() >= self.deadline {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        self.bytes.read(buffer)
    }
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
            // Three on top of each other passed undecoded, and so without a key.
            ("br, deflate, gzip", gzip(&zlib(&brotli(TEXT)))),
            ("gzip, identity, zstd, br, gzip", gzip(&brotli(&zstd(&gzip(TEXT))))),
            (&["gzip"; LAYERS_MAX].join(","), (0..LAYERS_MAX).fold(TEXT.to_vec(), |inside, _| gzip(&inside))),
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
        // Far past what an inner layer may unfold to, it was taken for a body that isn't understood, and passed.
        for twice in [gzip(&gzip(&zeros)), gzip(&gzip(&vec![0; 64 << 20])), gzip(&zeros)] {
            assert!(matches!(decode("gzip, gzip", twice, 1 << 20), Err(BodyError::TooLarge(1_048_576))));
        }
        // What each of many layers may add is counted from what came, not from the layer around it.
        for layers in 3..=LAYERS_MAX {
            let bomb = (0..layers).fold(vec![0; 64 << 20], |inside, _| gzip(&inside));
            let seen = decode(&vec!["gzip"; layers].join(","), bomb, 1 << 20);
            assert!(matches!(seen, Err(BodyError::TooLarge(1_048_576))), "{layers}: {seen:?}");
        }
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
            ("gzip, compress", gzip(TEXT)),
            (&format!("compress{}", ", gzip".repeat(LAYERS_MAX + 1)), gzip(TEXT)),
        ];
        for (encoding, raw) in table {
            assert!(matches!(decode(encoding, raw, 1000), Err(BodyError::NotUnderstood)), "{encoding}");
        }
        let many = decode(&["gzip"; LAYERS_MAX + 1].join(","), gzip(TEXT), 1000);
        assert!(matches!(many, Err(BodyError::TooManyLayers(LAYERS_MAX))), "{many:?}");
    }

    #[test]
    fn members_and_layers_without_end_are_not_undone() {
        // 323 bytes of four layers held a serving thread for two seconds: a million empty members inside.
        let empty = gzip(b"");
        let members = |count: usize| empty.repeat(count);
        assert_eq!(decode("gzip", members(GZIP_MEMBERS_MAX), 1000).unwrap(), "");
        let many = decode("gzip", members(GZIP_MEMBERS_MAX + 1), 25 << 20);
        assert!(matches!(many, Err(BodyError::NotUnderstood)), "{many:?}");
        for count in [GZIP_MEMBERS_MAX, 1 << 20] {
            let seen = decode("gzip, gzip", gzip(&members(count)), 25 << 20);
            assert!(matches!(seen, Err(BodyError::TooLarge(_))), "{count}: {seen:?}");
        }
    }

    #[test]
    fn what_takes_too_long_is_given_up() {
        // A body of blocks with nothing in them is much to do, and nothing comes out that could be too long.
        let now = monotonic();
        let noise: Vec<u8> =
            (0..1_u32 << 16).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for (encoding, raw) in [
            (Encoding::Gzip, gzip(&noise)),
            (Encoding::Deflate, zlib(&noise)),
            (Encoding::Deflate, raw_deflate(&noise)),
            (Encoding::Brotli, brotli(&noise)),
            (Encoding::Zstd, zstd(&noise)),
        ] {
            let seen = undo(&[encoding], &raw.into(), 1 << 20, now);
            assert!(matches!(seen, Err(BodyError::TooMuchWork)), "{encoding:?}: {seen:?}");
        }
    }

    #[tokio::test]
    async fn what_is_undone_aside_is_the_same() {
        let text = TEXT.repeat(100_000);
        let mut headers = HeaderMap::new();
        for (encoding, raw) in [
            ("gzip", gzip(&text)),
            ("zstd", zstd(&text)),
            ("deflate, gzip", gzip(&zlib(TEXT))),
            ("br", brotli(TEXT)),
        ] {
            headers.insert(CONTENT_ENCODING, encoding.parse().unwrap());
            let raw = Bytes::from(raw);
            for limit in [text.len(), TEXT.len(), TEXT.len() - 1] {
                let (here, aside) = (
                    decoded(&headers, &raw, limit),
                    decoded_aside(&headers, &raw, limit, Duration::from_secs(60)).await,
                );
                assert_eq!(format!("{here:?}"), format!("{aside:?}"), "{encoding} {limit}");
            }
        }
    }
}
