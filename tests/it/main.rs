//! One binary, a list of stories.
<<<<<<< HEAD
#![expect(clippy::unwrap_used, reason = "a test that finds something missing fails there and then")]

mod hot;
=======
#![expect(clippy::unwrap_used, reason = "a story may stop at what it did not expect")]
#![expect(clippy::disallowed_methods, reason = "stories move by the machine's clock and spawn what they like")]

>>>>>>> tests
mod support;
