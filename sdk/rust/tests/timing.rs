//! The renewal arithmetic is that of the Python runtime, which wrote the vectors.

use dibs::LossReason;
use dibs::arithmetic::{Care, End, Hold, call_limit, margin, renew_after, trusted};
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors/timing.json")).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[track_caller]
fn same(found: f64, expected: &Value, context: &Value) {
    assert!((found - number(expected)).abs() < 1e-9, "{found} is not {expected}: {context}");
}

#[test]
fn durations_follow_from_a_ttl() {
    let vectors = vectors();
    for each in vectors["durations"].as_array().unwrap() {
        let ttl = number(&each["ttl"]);
        same(margin(ttl), &each["margin"], each);
        same(trusted(ttl), &each["trusted"], each);
        same(renew_after(ttl), &each["renew_after"], each);
        same(call_limit(ttl, number(&vectors["call_timeout"])), &each["call_limit"], each);
    }
}

#[test]
fn leases_live_and_end_as_in_python() {
    for case in vectors()["cases"].as_array().unwrap() {
        let (ttl, sent, deadline) =
            (number(&case["ttl"]), number(&case["sent"]), number(&case["deadline"]));
        let (has_inbox, auto_renew) = (case["inbox"] == true, case["auto_renew"] == true);
        let mut hold = Hold::new(ttl, sent, deadline, has_inbox, auto_renew);
        same(hold.renew_at, &case["first_renew_at"], case);
        for step in case["steps"].as_array().unwrap() {
            let now = number(&step["now"]);
            match step["do"].as_str().unwrap() {
                "check" => match hold.check(now) {
                    Care::Renew => assert_eq!(step["renew"], true, "{step}"),
                    Care::WaitUntil(at) => {
                        assert_eq!(step["renew"], false, "{step}");
                        same(at, &step["again_at"], step);
                    }
                    Care::Ended => assert!(step["again_at"].is_null(), "{step}"),
                },
                "renewed" => hold.renewed(number(&step["sent"]), number(&step["ttl"]), now),
                "failed" => hold.failed("no answer", now),
                "lost" if step["reason"] == "revoked" => hold.lost(LossReason::Revoked, "", now),
                "lost" => hold.lost(LossReason::Expired, "", now),
                _ => {
                    hold.suspect(now);
                    let care = hold.check(now); // Python posts the renewal at once
                    assert_eq!(care == Care::Renew, step["renew"] == true, "{step}");
                }
            }
            same(hold.deadline, &step["deadline"], step);
            match (&hold.end, step["end"].as_str()) {
                (None, None) => same(hold.renew_at, &step["renew_at"], step),
                (Some(End::Lost(LossReason::Expired, _)), Some("expired"))
                | (Some(End::Lost(LossReason::Revoked, _)), Some("revoked")) => {}
                (found, expected) => panic!("{found:?} is not {expected:?}: {step}"),
            }
        }
    }
}
