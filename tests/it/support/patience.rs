//! No story lasts for ever. Waits have limits of their own ([`super::within`]); this is for what they can't see: a
//! thread that blocks. It ends the whole test process and names the story, so that a run fails instead of hanging.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Far more than the longest story takes on a busy machine.
const STORY_MAX: Duration = Duration::from_secs(240);
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The stories under way, by the thread that each runs on: its name, and when it began.
static STORIES: Mutex<Option<HashMap<ThreadId, (String, Instant)>>> = Mutex::new(None);

thread_local! {
    static STORY: Story = const { Story };
}

/// Counts as under way from [`begin`] until its thread ends.
struct Story;

/// Starts the story's time, or starts it again where one thread runs story after story.
pub(crate) fn begin() {
    let current = thread::current();
    STORY.with(|_| {
        let mut stories = STORIES.lock().unwrap_or_else(PoisonError::into_inner);
        let stories = stories.get_or_insert_with(|| {
            thread::spawn(watch);
            HashMap::new()
        });
        stories.insert(current.id(), (current.name().unwrap_or_default().to_owned(), Instant::now()));
    });
}

impl Drop for Story {
    fn drop(&mut self) {
        let mut stories = STORIES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stories) = stories.as_mut() {
            stories.remove(&thread::current().id());
        }
    }
}

fn watch() {
    loop {
        thread::sleep(LOOK_EVERY);
        let stories = STORIES.lock().unwrap_or_else(PoisonError::into_inner);
        let late = stories.iter().flatten().find(|(_, (_, began))| began.elapsed() > STORY_MAX);
        if let Some((_, (name, _))) = late {
            use std::io::Write as _;
            // Not through `eprintln!`, which the test harness may capture.
            writeln!(std::io::stderr(), "{name} has been running for over {STORY_MAX:?}: giving up").ok();
            std::process::abort();
        }
    }
}
