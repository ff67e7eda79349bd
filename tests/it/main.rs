//! One binary, a list of stories.

mod signature_vectors;
