//! One binary, a list of stories.
#![expect(clippy::unwrap_used, reason = "a test that finds something missing fails there and then")]

mod hot;
mod support;
