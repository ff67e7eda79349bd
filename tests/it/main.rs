//! One binary, a list of stories.
#![expect(clippy::unwrap_used, reason = "a story that fails should say where")]

mod providers;
