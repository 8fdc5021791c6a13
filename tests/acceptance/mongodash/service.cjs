// A service on mongodash, as it may have run before: two tasks on one collection and one on another.
// node service.cjs <uri>. A document says in `do` what its handlers do. Prints each run as one line of JSON.
'use strict';
const mongodash = require('mongodash');

const once = { type: 'fixed', interval: '1h', maxAttempts: 1 };
const hourly = { type: 'fixed', interval: '1h', maxAttempts: 3 };
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

function handlerOf(task) {
    return async (context) => {
        const document = await context.getDocument();
        say({ task, id: document._id });
        if (document.do === 'fail') throw new Error('told to');
        if (document.do === 'defer') context.deferCurrent(3600 * 1000);
        if (document.do === 'hang') await new Promise(() => {});
    };
}

async function main() {
    const [uri] = process.argv.slice(2);
    await mongodash.init({ uri, reactiveTaskConcurrency: 4, monitoring: { enabled: false }, onInfo() {}, onError() {} });
    await mongodash.reactiveTask({
        task: 'sync-order', collection: 'orders', debounce: 0, retryPolicy: hourly,
        filter: { status: 'paid', total: { $gt: 0 } },
        watchProjection: {
            total: 1, 'address.city': 1, 'address.zip': true, 'items.price': 1, tags: 1, nothing: 1,
            'paid.year': { $year: '$paidAt' }, many: { $gt: [{ $size: '$items' }, 1] },
        },
        handler: handlerOf('sync-order'),
    });
    await mongodash.reactiveTask({
        task: 'archive-order', collection: 'orders', debounce: 0, retryPolicy: once,
        filter: { $eq: ['$archive', true] },
        watchProjection: { _id: 1 },
        handler: handlerOf('archive-order'),
    });
    await mongodash.reactiveTask({
        task: 'mirror-customer', collection: 'customers', debounce: 0, retryPolicy: once,
        handler: handlerOf('mirror-customer'),
    });
    await mongodash.startReactiveTasks();
    say('started');
}

main().catch((error) => { console.error(error); process.exit(1); });
