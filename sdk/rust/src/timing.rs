//! Durations that follow from a ttl, in seconds. They are those of the Python runtime.

/// How far clocks may run apart, as a fraction of the time that they measure.
const DRIFT: f64 = 0.01;

/// Seconds that every call has, however short its ttl is.
const SHORTEST_CALL: f64 = 0.1;

/// Seconds before the store's expiry at which the holder stops trusting its lease.
pub fn margin(ttl: f64) -> f64 {
    (0.1 * ttl).max(0.05) + DRIFT * ttl
}

/// Seconds after sending a message for which the holder trusts a lease of this ttl.
pub fn trusted(ttl: f64) -> f64 {
    ttl - margin(ttl)
}

/// Seconds from a confirmed message to the next renewal.
pub fn renew_after(ttl: f64) -> f64 {
    ttl / 3.0
}

/// Seconds that one renewal may take: a sixth of the ttl, so that there is time for another.
pub fn call_limit(ttl: f64, call_timeout: f64) -> f64 {
    (ttl / 6.0).min(call_timeout).max(SHORTEST_CALL)
}

/// Seconds for which the store remembers an ended id, because a copy of its acquire may be under way.
pub(crate) fn tombstone(call_timeout: f64) -> f64 {
    (2.0 * call_timeout).max(60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_comes_before_the_expiry() {
        for ttl in [0.1, 0.5, 1.0, 30.0, 86_400.0] {
            assert!(0.0 < trusted(ttl) && trusted(ttl) < ttl);
            assert!(renew_after(ttl) < trusted(ttl));
        }
    }
}
