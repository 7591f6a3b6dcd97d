// produce|read|group as tests/clients/adapters.py describes them, with KafkaJS.
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");
const [verb, bootstrap, topic, third, fourth] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs", brokers: [bootstrap], logLevel: logLevel.ERROR });
const line = (o) => process.stdout.write(JSON.stringify(o) + "\n");

async function produce() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const count = Number(fourth);
  const codec = third === "gzip" ? CompressionTypes.GZIP : CompressionTypes.None;
  for (let i = 0; i < count; i += 10) {
    const messages = [];
    for (let j = i; j < Math.min(i + 10, count); j++)
      messages.push({ key: `k-${j}`, value: `v-${j}-größe`, partition: 0, headers: { h: `${j}` },
                      timestamp: String(1700000000000 + j * 1000) });
    const [sent] = await producer.send({ topic, acks: -1, compression: codec, messages });
    messages.forEach((_, k) => line({ offset: Number(sent.baseOffset) + k }));
  }
  await producer.disconnect();
}

async function consume(groupId, count, from) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 10000, maxWaitTimeInMs: 200 });
  consumer.on(consumer.events.CRASH, ({ payload }) => { console.error(payload.error); process.exit(1); });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let got = 0, finish;
  const done = new Promise((resolve) => (finish = resolve));
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ message, partition }) => {
      if (got >= count) return;
      got++;
      line({ offset: Number(message.offset), key: message.key?.toString() ?? "", value: message.value.toString(),
             header: message.headers.h?.toString() ?? "", timestamp: Number(message.timestamp) });
      if (got === count) {
        if (from === undefined)
          await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }]);
        finish();
      }
    },
  });
  if (from !== undefined) consumer.seek({ topic, partition: 0, offset: from });
  await done;
  await consumer.disconnect();
}

const run = verb === "produce" ? produce()
  : verb === "read" ? consume(`read-${process.pid}-${Date.now()}`, Number(fourth), third)
  : consume(third, Number(fourth));
run.then(() => process.exit(0), (e) => { console.error(e); process.exit(1); });
