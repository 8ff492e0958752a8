//! Take a slot of a pool, in a thread.

use std::time::Duration;

fn main() -> Result<(), dibs::Error> {
    let client = dibs::blocking::Client::connect(std::env::var("DIBS_URL").expect("DIBS_URL"))?;
    let lease = client.semaphore("jobs/gpu", 2).wait(Duration::from_secs(5)).acquire()?;
    println!("slots {:?} are ours", lease.slots());
    lease.ensure(Duration::from_secs(1))?;
    lease.release()
}
