//! A value that one task publishes and others wait for. They are woken in the order in which they came: tokio's `watch`
//! wakes in a random one, and no run could be repeated.

use parking_lot::RwLock;
use tokio::sync::Notify;

/// A value that may not be there yet.
pub(crate) struct Published<T> {
    value: RwLock<Option<T>>,
    changed: Notify,
}

impl<T> Default for Published<T> {
    fn default() -> Self {
        Self { value: RwLock::new(None), changed: Notify::new() }
    }
}

impl<T: Clone> Published<T> {
    pub(crate) fn get(&self) -> Option<T> {
        self.value.read().clone()
    }

    pub(crate) fn publish(&self, value: T) {
        *self.value.write() = Some(value);
        self.changed.notify_waiters();
    }

    /// The value, as soon as there is one.
    pub(crate) async fn wait(&self) -> T {
        loop {
            let changed = self.changed.notified(); // before the look, so that no change is missed
            if let Some(value) = self.get() {
                return value;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::Mutex;

    #[tokio::test]
    async fn who_came_first_is_woken_first() {
        let (published, order) = (Arc::new(Published::default()), Arc::new(Mutex::new(Vec::new())));
        let tasks: Vec<_> = (0..20)
            .map(|index| {
                let (published, order) = (Arc::clone(&published), Arc::clone(&order));
                tokio::spawn(async move {
                    assert_eq!(published.wait().await, 7);
                    order.lock().unwrap().push(index);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        published.publish(7);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }
}
