#!/bin/sh
# Images for `pytest --allocator-backend=containers`, from Debian packages and from the jars of `allocator cluster fetch`:
# for an engine that cannot pull, and for versions of Kafka that nobody publishes an image of.
#   docker/standins/build.sh zookeeper 3.9.1 0.9.0.1
# Needs root, debootstrap and a Docker engine. Kafka 3.9.1, 4.1.1 and ZooKeeper take the names of the published images,
# other versions allocator/kafka:VERSION. MIRROR is where debootstrap gets packages (default: its own).
set -eu

BASE=allocator/standin-java:17
CACHE=${ALLOCATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/allocator}
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! docker image inspect "$BASE" >/dev/null 2>&1; then
    debootstrap --variant=minbase --include=openjdk-17-jre-headless bookworm "$work/root" ${MIRROR:-}
    tar -C "$work/root" -c . | docker import - "$BASE"
    rm -rf "$work/root"
fi

# image NAME JARS: what is in $work/bin, and the jars; the entry point fails, as those of the published images make
# settings of their own, which the backend must not use
image() {
    [ -d "$2" ] || { echo "$2 does not exist: run \`allocator cluster fetch\` first" >&2; exit 1; }
    cp -r "$2" "$work/libs"
    cat >"$work/Dockerfile" <<EOF
FROM $BASE
COPY bin /opt/kafka/bin
COPY libs /opt/kafka/libs
COPY log4j.properties /opt/kafka/config/
ENV PATH=/opt/kafka/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/bin/false"]
EOF
    docker build --quiet --tag "$1" "$work"
    rm -rf "$work/libs"
}

# script NAME OPTIONS CLASS WORDS: runs the class in place of the shell, so that signals come to it
script() {
    cat >"$work/bin/$1" <<EOF
#!/bin/sh
exec java $2 -Dlog4j.configuration=file:/opt/kafka/config/log4j.properties -cp '/opt/kafka/libs/*' $3 $4
EOF
    chmod 755 "$work/bin/$1"
}

cat >"$work/log4j.properties" <<'EOF'
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
EOF

for version in "$@"; do
    rm -rf "$work/bin"
    mkdir "$work/bin"
    if [ "$version" = zookeeper ]; then
        # shellcheck disable=SC2016 # for the shell in the container
        script zkServer.sh '${JVMFLAGS:-}' org.apache.zookeeper.server.quorum.QuorumPeerMain '"$2"'
        image zookeeper:3.8.4 "$CACHE/zookeeper-3.8.4"
        continue
    fi
    # shellcheck disable=SC2016
    script kafka-server-start.sh '${KAFKA_HEAP_OPTS:-} ${KAFKA_OPTS:-}' kafka.Kafka '"$1"'
    # shellcheck disable=SC2016
    script kafka-storage.sh '-Xmx128m' kafka.tools.StorageTool '"$@"'
    case $version in
    3.9.1 | 4.1.1) name=apache/kafka:$version ;;
    *) name=allocator/kafka:$version ;;
    esac
    image "$name" "$CACHE/kafka-$version"
done
