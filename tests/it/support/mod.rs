//! What the stories stand on.

pub(crate) mod postgres;
