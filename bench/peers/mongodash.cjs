// One measurement of mongodash on an empty database; prints its figures as one line of JSON.
// node mongodash.cjs <uri> latency|burst|backlog <count> <slots>
'use strict';
const { performance } = require('node:perf_hooks');
const mongodash = require('mongodash');

const [uri, what, countText, slotsText] = process.argv.slice(2);
const count = Number(countText);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const order = (number) => ({ _id: number, status: 'paid', total: number % 100, pad: 'x'.repeat(300) });
const handled = new Map();
let onHandled = () => {};

async function insert(orders, first, number) {
    for (let start = first; start < first + number; start += 1000) {
        const end = Math.min(start + 1000, first + number);
        await orders.insertMany(Array.from({ length: end - start }, (_, i) => order(start + i)), { ordered: false });
    }
}

async function allSettled(records, expected) {
    const deadline = performance.now() + 170000;
    while ((await records.countDocuments({ status: 'completed' })) < expected) {
        if (performance.now() > deadline) throw new Error('not done in time');
        await sleep(20);
    }
}

function checkLedger(expected) {
    const twice = [...handled.values()].filter((times) => times > 1).length;
    if (handled.size !== expected || twice) throw new Error(`ledger: ${handled.size} of ${expected}, ${twice} twice`);
}

async function latency(orders) {
    const found = [];
    for (let number = 0; number < count + 5; number++) {
        const arrival = new Promise((resolve) => { onHandled = () => resolve(performance.now()); });
        const begun = performance.now();
        await orders.insertOne(order(number));
        const took = (await arrival) - begun;
        if (number >= 5) found.push(took);
        await sleep(10 + Math.random() * 30);
    }
    found.sort((a, b) => a - b);
    const at = (share) => found[Math.min(Math.floor(found.length * share), found.length - 1)];
    return { 'p50 ms': at(0.5), 'p95 ms': at(0.95), 'p99 ms': at(0.99) };
}

async function main() {
    await mongodash.init({ uri, reactiveTaskConcurrency: Number(slotsText), monitoring: { enabled: false } });
    const orders = mongodash.getCollection('orders');
    const records = mongodash.getCollection('orders_tasks');
    if (what === 'backlog') await insert(orders, 0, count);
    await mongodash.reactiveTask({
        task: 't', collection: 'orders', filter: { status: 'paid' }, watchProjection: { status: 1 }, debounce: 0,
        handler: async ({ docId }) => {
            handled.set(docId, (handled.get(docId) ?? 0) + 1);
            onHandled();
        },
    });
    let begun = performance.now();
    await mongodash.startReactiveTasks();
    let figures;
    if (what === 'latency') {
        await sleep(2000);
        figures = await latency(orders);
    } else {
        if (what === 'burst') {
            await sleep(2000);
            begun = performance.now();
            await insert(orders, 0, count);
        }
        await allSettled(records, count);
        figures = { 'per s': count / ((performance.now() - begun) / 1000) };
        checkLedger(count);
    }
    console.log(JSON.stringify(figures));
}

main().then(() => process.exit(0), (error) => { console.error(String(error)); process.exit(1); });
