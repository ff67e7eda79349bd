//! One binary, a list of stories.
#![expect(clippy::unwrap_used, reason = "a story may stop at what it did not expect")]

mod signature_vectors;
