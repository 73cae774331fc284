// Java's consumers, driven by lines on standard input: for clients 2.0 and newer.
//
//	NUMBER open NAME TOPIC SETTING=VALUE ...        NUMBER poll NAME MS LIMIT       partition,offset,value ...
//	NUMBER assigned NAME     partition ...          NUMBER only NAME PARTITION ...  pauses the others
//	NUMBER position NAME PARTITION                  NUMBER seek NAME PARTITION OFFSET
//	NUMBER commit NAME [PARTITION OFFSET]           NUMBER close NAME
//
// The answer is "NUMBER ok RESULT" or "NUMBER error TEXT". The end of the input kills the process.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Twin {
    final KafkaConsumer<String, String> consumer;
    final ExecutorService thread = Executors.newSingleThreadExecutor();
    final String topic;

    Twin(String topic, List<String> settings) {
        Properties p = new Properties();
        for (String each : settings) p.put(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
        p.put("max.poll.records", "1"); // so that `poll` returns as many as wanted
        this.topic = topic;
        consumer = new KafkaConsumer<>(p, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(Collections.singletonList(topic), new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection<TopicPartition> gone) {}
            public void onPartitionsAssigned(Collection<TopicPartition> added) { consumer.pause(added); }
        });
    }

    public static void main(String[] a) throws Exception {
        Map<String, Twin> all = new ConcurrentHashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            List<String> words = Arrays.asList(line.trim().split(" "));
            String number = words.get(0), name = words.get(2);
            List<String> rest = words.subList(3, words.size());
            try {
                if (words.get(1).equals("open")) {
                    all.put(name, new Twin(rest.get(0), rest.subList(1, rest.size())));
                    say(number + " ok");
                    continue;
                }
            } catch (Exception error) {
                say(number + " error " + error);
                continue;
            }
            Twin twin = all.get(name);
            twin.thread.execute(() -> {
                try {
                    say(number + " ok " + twin.does(words.get(1), rest));
                } catch (Exception error) {
                    say(number + " error " + error);
                }
            });
        }
        Runtime.getRuntime().halt(1);
    }

    static synchronized void say(String text) {
        System.out.println(text);
    }

    TopicPartition at(String partition) {
        return new TopicPartition(topic, Integer.parseInt(partition));
    }

    String does(String what, List<String> a) {
        switch (what) {
            case "assigned":
                return consumer.assignment().stream().map(p -> "" + p.partition()).collect(Collectors.joining(" "));
            case "only":
                Set<TopicPartition> wanted = a.stream().map(this::at).collect(Collectors.toSet());
                wanted.retainAll(consumer.assignment());
                Set<TopicPartition> others = new HashSet<>(consumer.assignment());
                others.removeAll(wanted);
                consumer.pause(others);
                consumer.resume(wanted);
                return "";
            case "position":
                return "" + consumer.position(at(a.get(0)), Duration.ofSeconds(1));
            case "seek":
                consumer.seek(at(a.get(0)), Long.parseLong(a.get(1)));
                return "";
            case "commit":
                if (a.isEmpty()) consumer.commitSync();
                else consumer.commitSync(Collections.singletonMap(at(a.get(0)), new OffsetAndMetadata(Long.parseLong(a.get(1)))));
                return "";
            case "close":
                consumer.close();
                thread.shutdown();
                return "";
            default:
                return poll(Long.parseLong(a.get(0)), Integer.parseInt(a.get(1)));
        }
    }

    String poll(long ms, int limit) {
        List<String> found = new ArrayList<>();
        long wait = ms;
        while (found.size() < limit) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(wait));
            if (records.isEmpty()) break;
            for (ConsumerRecord<String, String> r : records) found.add(r.partition() + "," + r.offset() + "," + r.value());
            wait = 0;
        }
        return String.join(" ", found);
    }
}
