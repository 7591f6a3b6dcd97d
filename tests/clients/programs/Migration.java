// A group whose members change their protocol one after the other while messages come: classic, consumer, classic again.
// Bootstrap, topic, group.  Prints how many messages were sent and read, how many twice, and how often any were lost.
import java.time.Duration;
import java.util.*;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class Migration {
    static final List<Member> living = new ArrayList<>();
    static final Map<String, Integer> read = new HashMap<>();
    static int sent = 0, lost = 0, partitions;
    static KafkaProducer<String, String> producer;
    static String[] arguments;

    static class Member extends KafkaConsumer<String, String> implements ConsumerRebalanceListener {
        Member(String protocol) {
            super(settings(protocol));
            subscribe(List.of(arguments[1]), this);
            living.add(this);
        }

        static Map<String, Object> settings(String protocol) {
            Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", arguments[0], "group.id", arguments[2], "group.protocol", protocol,
                "auto.offset.reset", "earliest", "auto.commit.interval.ms", "200",
                "key.deserializer", StringDeserializer.class, "value.deserializer", StringDeserializer.class));
            if (protocol.equals("classic")) // in the consumer protocol these are the coordinator's
                settings.putAll(Map.of("session.timeout.ms", "30000", "heartbeat.interval.ms", "300"));
            if (arguments[3].equals("cooperative") && protocol.equals("classic"))
                settings.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
            return settings;
        }

        public void onPartitionsAssigned(Collection<TopicPartition> parts) { }

        public void onPartitionsRevoked(Collection<TopicPartition> parts) { }

        public void onPartitionsLost(Collection<TopicPartition> parts) { lost++; }
    }

    static void turn() {
        for (int partition = 0; partition < partitions; partition++)
            producer.send(new ProducerRecord<>(arguments[1], partition, null, "m" + sent++));
        for (Member member : living)
            for (ConsumerRecord<String, String> message : member.poll(Duration.ofMillis(20)))
                read.merge(message.value(), 1, Integer::sum);
    }

    static void turnUntil(BooleanSupplier condition, String what) {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) throw new RuntimeException("not within 60 s: " + what);
            turn();
        }
    }

    static boolean shared() {
        Set<TopicPartition> owned = new HashSet<>();
        for (Member member : living) {
            if (member.assignment().isEmpty()) return false;
            owned.addAll(member.assignment());
        }
        return owned.size() == partitions;
    }

    static void replace(String protocol) {
        Member goes = living.get(0);
        new Member(protocol);
        turnUntil(Migration::shared, protocol + " joins");
        living.remove(goes);
        goes.close();
        turnUntil(Migration::shared, "one has gone");
    }

    public static void main(String[] a) throws Exception {
        arguments = a;
        producer = new KafkaProducer<>(Map.of("bootstrap.servers", a[0],
            "key.serializer", StringSerializer.class, "value.serializer", StringSerializer.class));
        partitions = producer.partitionsFor(a[1]).size();
        new Member("classic");
        new Member("classic");
        turnUntil(Migration::shared, "two of the classic protocol");
        for (String protocol : List.of("consumer", "consumer", "classic", "classic")) replace(protocol);
        producer.flush();
        int count = sent;
        turnUntil(() -> IntStream.range(0, count).allMatch(number -> read.containsKey("m" + number)), "all is read");
        long twice = read.values().stream().filter(times -> times > 1).count();
        System.out.println("{\"sent\":" + count + ",\"twice\":" + twice + ",\"lost\":" + lost + "}");
        for (Member member : living) member.close();
        producer.close();
    }
}
