//! A slot of a semaphore, in threads.
//!
//! `DIBS_URL=http://127.0.0.1:5327 DIBS_API_KEY=dibs_… cargo run --features blocking --example blocking`

use std::thread;
use std::time::Duration;

fn main() -> Result<(), dibs::Error> {
    let url = std::env::var("DIBS_URL").unwrap_or("http://127.0.0.1:5327".into());
    let client = dibs::blocking::Client::connect(url)?;
    let workers: Vec<_> = (0..4)
        .map(|number| {
            let client = client.clone();
            thread::spawn(move || {
                let pool = client.semaphore("examples/pool", 2).wait(Duration::from_secs(10));
                let lease = pool.acquire()?;
                println!("worker {number} has slot {:?}", lease.slots());
                thread::sleep(Duration::from_millis(100));
                lease.ensure(Duration::from_secs(1))?;
                lease.release()
            })
        })
        .collect();
    workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
}
