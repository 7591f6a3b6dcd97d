// produce|read|group as tests/clients/adapters.py describes them, with Kafka's own Java client.
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Client {
    public static void main(String[] a) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", a[1]);
        p.put("key.serializer", StringSerializer.class);
        p.put("value.serializer", StringSerializer.class);
        p.put("key.deserializer", StringDeserializer.class);
        p.put("value.deserializer", StringDeserializer.class);
        String topic = a[2];
        switch (a[0]) {
            case "produce" -> produce(p, topic, a[3], Integer.parseInt(a[4]));
            case "read" -> {
                try (var c = new KafkaConsumer<String, String>(p)) {
                    var tp = new TopicPartition(topic, 0);
                    c.assign(List.of(tp));
                    c.seek(tp, Long.parseLong(a[3]));
                    take(c, Integer.parseInt(a[4]));
                }
            }
            case "group" -> {
                p.put("group.id", a[3]);
                p.put("auto.offset.reset", "earliest");
                p.put("enable.auto.commit", "false");
                try (var c = new KafkaConsumer<String, String>(p)) {
                    c.subscribe(List.of(topic));
                    var last = take(c, Integer.parseInt(a[4]));
                    var tp = new TopicPartition(last.topic(), last.partition());
                    c.commitSync(Map.of(tp, new OffsetAndMetadata(last.offset() + 1)));
                }
            }
        }
    }

    static void produce(Properties p, String topic, String codec, int count) throws Exception {
        p.put("compression.type", codec);
        p.put("linger.ms", "1000");
        try (var producer = new KafkaProducer<String, String>(p)) {
            var sent = new ArrayList<Future<RecordMetadata>>();
            for (int i = 0; i < count; i++) {
                var record = new ProducerRecord<>(
                    topic, 0, 1700000000000L + i * 1000L, "k-" + i, "v-" + i + "-größe");
                record.headers().add("h", ("" + i).getBytes(StandardCharsets.UTF_8));
                sent.add(producer.send(record));
                if (i % 10 == 9) producer.flush();
            }
            producer.flush();
            for (var f : sent) System.out.println("{\"offset\":" + f.get().offset() + "}");
        }
    }

    static ConsumerRecord<String, String> take(KafkaConsumer<String, String> c, int count) {
        ConsumerRecord<String, String> last = null;
        long deadline = System.nanoTime() + 60_000_000_000L;
        for (int got = 0; got < count; ) {
            if (System.nanoTime() > deadline) throw new RuntimeException("only " + got + " of " + count);
            for (var r : c.poll(Duration.ofMillis(500))) {
                if (got++ >= count) break;
                var h = r.headers().lastHeader("h");
                System.out.println("{\"offset\":" + r.offset() + ",\"key\":\"" + r.key() + "\",\"value\":\"" + r.value()
                    + "\",\"header\":\"" + (h == null ? "" : new String(h.value(), StandardCharsets.UTF_8))
                    + "\",\"timestamp\":" + r.timestamp() + "}");
                last = r;
            }
        }
        return last;
    }
}
