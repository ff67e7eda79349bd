//! Work that outlives whoever waits for it. Knows nothing of what the work is.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// A future that is polled where it stands, as long as somebody waits for it; dropped before its end, it goes on in a
/// task of the tracker. The usual request thus costs no task of its own.
pub(super) struct Persistent<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    work: Option<Pin<Box<F>>>,
    tracker: TaskTracker,
}

impl<F> Persistent<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// Boxed: it may move to a task half-way, and is large.
    pub(super) fn new(work: Pin<Box<F>>, tracker: TaskTracker) -> Self {
        Self { work: Some(work), tracker }
    }
}

impl<F> Future for Persistent<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let work = self.work.as_mut().expect("a future isn't polled after its end");
        let output = ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(output)
    }
}

impl<F> Drop for Persistent<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        // What panicked can't go on; and a runtime that ends takes nothing more, having waited for its grace.
        if let Some(work) = self.work.take().filter(|_| !std::thread::panicking())
            && Handle::try_current().is_ok()
        {
            self.tracker.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_that_nobody_waits_for_any_more_goes_on_where_it_was() {
        let (go_on, told) = oneshot::channel::<()>();
        let (tell, ended) = oneshot::channel();
        let tracker = TaskTracker::new();
        let work = async move {
            let told = told.await;
            tell.send(told.is_ok()).ok();
        };
        let work = Persistent::new(Box::pin(work), tracker.clone());
        assert!(tokio::time::timeout(Duration::ZERO, work).await.is_err(), "it waits to be told");
        assert_eq!(tracker.len(), 1);
        go_on.send(()).unwrap();
        assert!(ended.await.unwrap());
        tracker.close();
        tracker.wait().await;
    }

    #[tokio::test]
    async fn work_that_ends_in_time_takes_no_task() {
        let tracker = TaskTracker::new();
        assert_eq!(Persistent::new(Box::pin(async { 7 }), tracker.clone()).await, 7);
        assert!(tracker.is_empty());
    }
}
