//! The thread that sends all requests and renews all leases of this process.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::Error;

/// The runtime of this process. It has one thread of its own, which ends with the process.
pub(crate) fn handle() -> Result<&'static Handle, Error> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("dibs").enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    match made {
        Ok(runtime) => Ok(runtime.handle()),
        Err(error) => Err(Error::Invalid(format!(
            "the thread that renews leases did not start ({error}): check the limit of threads"
        ))),
    }
}

/// A task of the runtime. It ends when this is dropped.
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(crate) fn spawn(handle: &Handle, future: impl Future<Output = T> + Send + 'static) -> Self {
        Task(handle.spawn(future))
    }
}

impl<T> Future for Task<Result<T, Error>> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|joined| match joined {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::unavailable("the process is about to end")),
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
