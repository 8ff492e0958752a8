//! The boot clock: nobody sets it, and it continues while the machine is suspended.

use std::time::Duration;

/// Seconds between two looks at the boot clock. Timers of the runtime stand still during suspend.
const LONGEST_SLEEP: f64 = 1.0;

/// Seconds on the boot clock, since an arbitrary moment.
#[cfg(unix)]
pub fn now() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds on the monotonic clock, since an arbitrary moment.
#[cfg(not(unix))]
pub fn now() -> f64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_secs_f64()
}

/// Sleep until a time of the boot clock.
pub(crate) async fn sleep_until(at: f64) {
    loop {
        let left = at - now();
        if left <= 0.0 {
            return;
        }
        tokio::time::sleep(Duration::from_secs_f64(left.min(LONGEST_SLEEP))).await;
    }
}

/// Name of this machine, for people.
pub(crate) fn host_name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    if name.is_empty() { "localhost".into() } else { name }
}
