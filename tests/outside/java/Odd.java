// Records as Java's producer writes them, and as Java's consumer delivers them. For clients 2.0 and newer.
//
//	Odd produce BROKERS TOPIC CODEC BIG       records without key, value or both, with headers, of BIG bytes, in batches
//	Odd transactions BROKERS TOPIC CODEC      three committed transactions and two that are aborted, one inside another
//	Odd compacted BROKERS TOPIC CODEC         ten keys again and again, and a delete marker
//	Odd read BROKERS TOPIC ISOLATION          one line for each record up to the end of its partition

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Odd {
    static final long FIRST = 1600000000000L;

    public static void main(String[] a) throws Exception {
        switch (a[0]) {
            case "produce": produce(a[1], a[2], a[3], Integer.parseInt(a[4])); break;
            case "transactions": transactions(a[1], a[2], a[3]); break;
            case "compacted": compacted(a[1], a[2], a[3]); break;
            case "read": read(a[1], a[2], a[3]); break;
            default: throw new IllegalArgumentException(a[0]);
        }
    }

    static KafkaProducer<byte[], byte[]> producer(String brokers, String codec, String transactional) {
        Properties p = new Properties();
        p.put("bootstrap.servers", brokers);
        p.put("compression.type", codec);
        p.put("acks", "all");
        p.put("linger.ms", "50");
        p.put("max.request.size", "20000000");
        p.put("buffer.memory", "64000000");
        p.put("enable.idempotence", transactional == null ? "false" : "true");
        if (transactional != null) p.put("transactional.id", transactional);
        return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static ProducerRecord<byte[], byte[]> record(String topic, int partition, long n, byte[] key, byte[] value) {
        // times go back and forth, which a batch has to keep
        long at = n < 0 ? System.currentTimeMillis() : FIRST + n * 7 - (n % 5) * 1000;
        return new ProducerRecord<>(topic, partition, at, key, value);
    }

    static void produce(String brokers, String topic, String codec, int big) {
        boolean headers = !System.getProperty("headers", "yes").equals("no");
        try (KafkaProducer<byte[], byte[]> producer = producer(brokers, codec, null)) {
            for (int n = 0; n < 500; n++) {
                byte[] key = n % 3 == 0 ? null : n % 3 == 1 ? new byte[0] : bytes("key-" + n);
                byte[] value = n % 7 == 0 ? null : n % 7 == 1 ? new byte[0] : bytes("value-é-" + n + "x".repeat(n));
                ProducerRecord<byte[], byte[]> record = record(topic, n % 2, n, key, value);
                if (headers && n % 4 == 0) {
                    record.headers().add("again", bytes("1")).add("again", bytes("2"));
                    record.headers().add("", new byte[0]).add("näme", null).add("binary", new byte[] {0, -1, -128, 127});
                }
                producer.send(record);
            }
            producer.flush();
            byte[] random = new byte[big];
            new Random(7).nextBytes(random);
            producer.send(record(topic, 0, 500, bytes("random"), random));
            producer.send(record(topic, 1, 501, random, new byte[big / 4]));
            producer.flush();
            producer.send(record(topic, 0, 502, bytes("last"), bytes("0")));
            producer.send(record(topic, 1, 503, bytes("last"), bytes("1")));
        }
    }

    static void transactions(String brokers, String topic, String codec) {
        try (KafkaProducer<byte[], byte[]> one = producer(brokers, codec, topic + "-1");
                KafkaProducer<byte[], byte[]> two = producer(brokers, codec, topic + "-2");
                KafkaProducer<byte[], byte[]> plain = producer(brokers, codec, null)) {
            one.initTransactions();
            two.initTransactions();
            for (int turn = 0; turn < 3; turn++) {
                one.beginTransaction();
                two.beginTransaction();
                for (int n = 0; n < 30; n++) {
                    one.send(record(topic, n % 2, n, bytes("one"), bytes("one-" + turn + "-" + n)));
                    two.send(record(topic, n % 2, n, bytes("two"), bytes("two-" + turn + "-" + n)));
                    if (n % 10 == 0) {
                        one.flush();
                        plain.send(record(topic, n % 2, n, null, bytes("plain-" + turn + "-" + n)));
                        plain.flush();
                        two.flush();
                    }
                }
                one.flush(); // an abort drops what was not sent yet
                two.flush();
                if (turn == 1) one.abortTransaction(); else one.commitTransaction();
                if (turn == 1) two.commitTransaction(); else two.abortTransaction();
            }
        }
    }

    static void compacted(String brokers, String topic, String codec) {
        try (KafkaProducer<byte[], byte[]> producer = producer(brokers, codec, null)) {
            for (int n = 0; n < 2000; n++) {
                byte[] value = n == 1500 ? null : bytes("value-" + n + "-" + "y".repeat(n % 100));
                producer.send(record(topic, n % 2, -1, bytes("key-" + (n % 10)), value));
                if (n % 20 == 0) producer.flush();
            }
        }
    }

    static void read(String brokers, String topic, String isolation) throws Exception {
        Properties p = new Properties();
        p.put("bootstrap.servers", brokers);
        p.put("isolation.level", isolation);
        p.put("enable.auto.commit", "false");
        p.put("auto.offset.reset", "earliest");
        p.put("max.partition.fetch.bytes", "20000000");
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p, plain, plain)) {
            List<TopicPartition> all = new ArrayList<>();
            for (PartitionInfo info : consumer.partitionsFor(topic)) all.add(new TopicPartition(topic, info.partition()));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) show(record);
            }
        }
    }

    static void show(ConsumerRecord<byte[], byte[]> record) throws Exception {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) headers.append(' ').append(shown(bytes(header.key()))).append('=').append(shown(header.value()));
        System.out.println(record.partition() + " " + record.offset() + " " + record.timestampType().id + " " + record.timestamp()
            + " " + shown(record.key()) + " " + shown(record.value()) + headers);
    }

    static String shown(byte[] data) throws Exception {
        if (data == null) return "null";
        StringBuilder text = new StringBuilder(data.length + ":");
        for (byte each : MessageDigest.getInstance("SHA-256").digest(data)) text.append(String.format("%02x", each));
        return text.toString();
    }
}
