// Two static members of a group, one of which is restarted: bootstrap, topic, group, protocol (classic or consumer).
// Prints what the restarted one had and has, and how often the other one's partitions were assigned meanwhile.
import java.time.Duration;
import java.util.*;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class StaticMember {
    static final List<Member> living = new ArrayList<>();

    /** A consumer, and how often it was assigned partitions, or lost any. */
    static class Member extends KafkaConsumer<String, String> implements ConsumerRebalanceListener {
        int rebalances = 0;

        Member(String[] a, String instance) {
            super(settings(a, instance));
            subscribe(List.of(a[1]), this);
            living.add(this);
        }

        static Map<String, Object> settings(String[] a, String instance) {
            Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", a[0], "group.id", a[2], "group.instance.id", instance, "group.protocol", a[3],
                "auto.offset.reset", "earliest",
                "key.deserializer", StringDeserializer.class, "value.deserializer", StringDeserializer.class));
            if (a[3].equals("classic")) // in the consumer protocol these are the coordinator's
                settings.putAll(Map.of("session.timeout.ms", "30000", "heartbeat.interval.ms", "300"));
            return settings;
        }

        public void onPartitionsAssigned(Collection<TopicPartition> parts) { rebalances++; }

        public void onPartitionsRevoked(Collection<TopicPartition> parts) { rebalances++; }

        List<Integer> owned() { return assignment().stream().map(TopicPartition::partition).sorted().toList(); }
    }

    static void pollUntil(BooleanSupplier condition) {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) throw new RuntimeException("not within 60 s");
            for (Member member : living) member.poll(Duration.ofMillis(50));
        }
    }

    public static void main(String[] a) throws Exception {
        Member first = new Member(a, "a"), other = new Member(a, "b");
        int partitions = first.partitionsFor(a[1]).size();
        pollUntil(() -> first.owned().size() == partitions / 2 && other.owned().size() == partitions / 2);
        List<Integer> before = first.owned();
        int rebalances = other.rebalances;
        living.remove(first);
        first.close();
        Member again = new Member(a, "a");
        pollUntil(() -> !again.owned().isEmpty());
        int[] turns = {0};
        pollUntil(() -> ++turns[0] > 20); // several heartbeats of the other one, which would be told of a rebalance
        System.out.println("{\"before\":" + before + ",\"after\":" + again.owned()
            + ",\"rebalances\":" + (other.rebalances - rebalances) + "}");
        again.close();
        other.close();
    }
}
